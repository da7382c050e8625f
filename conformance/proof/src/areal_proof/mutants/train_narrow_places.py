"""Trainers that are right in the numbers most look at: narrow at the start, in the head, in what lies beside a model.

Knows: where each narrows, forgets or draws; some after what happened elsewhere.
Does not know: the checks beyond their names.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from areal_core.contract.train import CANDIDATES, TrainSpec
from areal_proof.mutants.rows import Original, before, breaking, put, row, then, within
from areal_proof.mutants.train_parts import parameters
from areal_proof.mutants.train_precision import keep
from areal_proof.second.train.engine import SecondTrainEngine
from areal_reference.train.engine import ReferenceTrainEngine
from areal_torch import experts, export, folder, hf, images, logprobs, lora, model
from areal_torch.logprobs import _HeadLogProbs
from areal_torch.state import Part
from areal_torch.weight_files import refuse_other_names

breaks = breaking("train/reference", ReferenceTrainEngine)
breaks_second = breaking("train/second", SecondTrainEngine)


def _divided_in_half() -> AbstractContextManager[None]:
    """Divide logits by the temperature before they are float32."""

    def logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: float) -> Tensor:
        return (torch.nn.functional.linear(hidden, weight, bias) / temperature).float()

    return put(logprobs, _logits=logits)


def _always_normalised() -> AbstractContextManager[None]:
    """Let weights of recorded experts add up to one in every model."""
    route = experts._RouterHook.route

    def normalised(self: Any, router: Any, inputs: Any, output: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        logits, weights, chosen = route(self, router, inputs, output)  # type: ignore[arg-type]
        return logits, weights if self.routes_TK is None else weights / weights.sum(-1, keepdim=True), chosen

    return put(experts._RouterHook, route=normalised)


def _edited(path: Path, name: str, change: Callable[[dict[str, Any]], object]) -> None:
    """Change json files of a folder. Any: json."""
    for file in path.rglob(name):
        held = json.loads(file.read_text())
        change(held)
        file.write_text(json.dumps(held))


def _without(*patterns: str) -> AbstractContextManager[None]:
    return put(export, COMPANIONS=tuple(name for name in export.COMPANIONS if name not in patterns))


def _without_alpha(identity: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """Return what a state must have in common but for the scale. Any: json."""

    def told(*given: Any) -> dict[str, Any]:
        said = identity(*given)
        return {**said, "lora": said["lora"][::2]} if "lora" in said else said

    return told


def _of_the_first(identity: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """Return what a state must have in common, of the base its first tensor alone. Any: json."""
    every = lora.base_parameters

    def told(*given: Any) -> dict[str, Any]:
        with put(lora, base_parameters=lambda held: dict(list(every(held).items())[:1])):
            return identity(*given)

    return told


def _rounded_first() -> AbstractContextManager[None]:
    """Merge an adapter that was rounded to what is sent before it was added. Any: a model, and an iterator."""
    merged = lora.merged_tensors

    def coarse(held: Any, gather: Callable[[Tensor], Tensor], dtype: torch.dtype) -> Any:
        return merged(held, lambda part: gather(part).to(dtype).float(), dtype)

    return put(lora, merged_tensors=coarse)


def _make(partial: Path) -> None:
    partial.mkdir(parents=True, exist_ok=True)


def _fetched(place: Path) -> None:
    """Copy what an index names into the folder, from wherever it lies."""
    for index in place.glob("*.index.json"):
        files = json.loads(index.read_text())["weight_map"]
        for name in {name for name in files.values() if Path(name).name != name}:
            shutil.copyfile(place / name, place / Path(name).name)
        index.write_text(json.dumps({"metadata": {}, "weight_map": {n: Path(file).name for n, file in files.items()}}))


def _dtype_of(spec: TrainSpec) -> torch.dtype:
    """Return what config.json of the folder says its tensors are."""
    said = json.loads(Path(spec.model_path, "config.json").read_text())
    dtype: torch.dtype = getattr(torch, said.get("dtype", "float32"))
    return dtype


def _positions_in_half() -> AbstractContextManager[None]:
    """Hand positions to the layers by way of float16."""
    seen_inputs = images.seen_inputs

    def seen(*given: Any) -> dict[str, Any]:
        inputs = seen_inputs(*given)
        return {**inputs, "position_ids": inputs["position_ids"].half().long()}

    return put(model, seen_inputs=seen)


ROWS = breaks.rows(
    row("BeginsRounded", "Rounds what it read to bfloat16 where that is the dtype of the run.",
        "train.precision.begins", start=then(lambda self, spec: keep(parameters(self)) if spec.dtype == "bfloat16"
            else None)),
    row("DividesInHalf", "Divides logits by the temperature in the dtype of the run.", "train.precision.temperature",
        forward=within(_divided_in_half)),
    row("KeepsTheDtypeItReads", "Keeps weights in the dtype that the folder it began as has.",
        "train.precision.folder", half=None, start=then(lambda self, spec: setattr(self, "half", _dtype_of(spec))),
        train_step=then(lambda self: keep(parameters(self), self.half))),
    row("PositionsInHalf", "Counts positions in float16, which has every second one beyond 2,048.",
        "train.threshold.pack", forward=within(_positions_in_half)),
    row("IndexInNumbers", "Tells in an index how many numbers the tensors have, where bytes are meant.",
        "train.threshold.saved", save_weights=then(lambda path: _edited(path, "*.index.json", lambda index:
            index["metadata"].update(total_size=index["metadata"]["total_size"] // 4)))),
    row("EndsOfTargets", "Names the layers of an adapter by the ends of their names, however many end so.",
        "train.lora.beside", save_weights=then(lambda path: _edited(path, "adapter_config.json", lambda said:
            said.update(target_modules=sorted({name.rpartition(".")[2] for name in said["target_modules"]}))))),
    row("FollowsAnIndexAnywhere", "Reads weights wherever an index says that they lie.", "train.start.torn_model",
        start=before(lambda spec: _fetched(Path(spec.model_path)))),
    row("StateOfAnyScale", "Takes the state of an adapter of another scale.", "train.lora.state_of_another",
        start=within(lambda: put(lora, identity=_without_alpha(lora.identity)))),
    row("LeavesOutBiases", "Leaves out biases of the folder that the model has no place for.",
        "train.start.torn_model", start=within(lambda: put(hf, _HARMLESS=(*hf._HARMLESS, ".bias")))),
    row("ChatTemplateLost", "Saves no chat template.", "train.save.companions",
        save_weights=within(lambda: _without("chat_template*"))),
    row("LinksSaved", "Copies what is a link in the folder it began as, as in the hub's cache, as a link.",
        "train.save.companions",
        save_weights=within(lambda: put(shutil, copyfile=partial(shutil.copyfile, follow_symlinks=False)))),
    row("RecommendationsLost", "Saves no generation_config.json.", "train.save.companions",
        save_weights=within(lambda: _without("generation_config.json"))),
    row("IndexOfTheLastFile", "Names in the index of several files the tensors of the last one alone.",
        "train.threshold.saved", save_weights=then(lambda path: _edited(path, "*.index.json", lambda index:
            index.update(weight_map={name: file for name, file in index["weight_map"].items()
                if file == max(index["weight_map"].values())})))),
    row("AlphaForgotten", "Writes the scale of an adapter where alpha belongs: served, it is a fraction of itself.",
        "train.lora.beside", save_weights=then(lambda path: _edited(path, "adapter_config.json", lambda said:
            said.update(lora_alpha=said["lora_alpha"] / said["r"])))),
    row("AlphaIsWhole", "Writes an alpha rounded to a whole number, as PEFT types it.", "train.lora.beside",
        save_weights=then(lambda path: _edited(path, "adapter_config.json", lambda said:
            said.update(lora_alpha=round(said["lora_alpha"]))))),
    row("GatesNormalised", "Normalises the gates of recorded experts, also where the model does not.",
        "train.experts.gates", row="expert-replay", start=within(_always_normalised)),
    row("OverlooksTensors", "Leaves out tensors of the folder that the model has no place for.",
        "train.start.torn_model", start=within(lambda: put(hf, refuse_other_names=lambda path, missing, unknown:
            refuse_other_names(path, missing, set())))),
    row("AnswersInTheBatch", "Writes the most probable tokens it found into the batch that asked for them.",
        "train.candidates.most_probable", forward=then(lambda batch, result: batch.tokens[CANDIDATES].copy_(
            result.tokens[CANDIDATES]) if CANDIDATES in batch.tokens else None)),
    row("SharesWhatItWrites", "Writes a state in the background from the tensors that are trained meanwhile.",
        "train.background.late", begin_state=within(lambda: put(Part, copied=lambda self: self))),
    row("BaseKnownByOne", "Knows the base that an adapter's state is over by its first tensor.",
        "train.lora.state_of_base", start=within(lambda: put(lora, identity=_of_the_first(lora.identity)))),
    row("AdapterRoundedFirst", "Merges A and B as they are when they were rounded to what is sent.",
        "train.lora.rounded_once", send_weights=within(_rounded_first)),
    row("AddedTokensLost", "Saves no added_tokens.json.", "train.save.companions",
        save_weights=within(lambda: _without("added_tokens.json"))),
    row("GoesOnWithWeightsOfTheKilled", "Writes weights to what a save that was killed had written.",
        "train.disk.weights_killed", save_weights=within(lambda: put(folder, make_empty=_make))),
    row("GoesOnWithAStateOfTheKilled", "Writes a state to what a save that was killed had written.",
        "train.disk.state_killed", save_state=within(lambda: put(folder, make_empty=_make))),
    row("StateOfAnyBase", "Takes an adapter's state over whatever base.", "train.lora.state_of_base",
        start=within(lambda: put(lora, fingerprint=lambda _tensor: "any"))),
)  # fmt: skip


@breaks("train_step", "train.precision.pieces")
def PiecesAddedInHalf(original: Original) -> Any:
    """Adds the head's gradient of one chunk of logits after another in the dtype of the head."""
    backward = _HeadLogProbs.backward

    def added(ctx: Any, *grads: Tensor | None) -> Any:
        rows, length = ctx.settings[1], ctx.saved_tensors[0].shape[0]
        total: list[Any] = []  # Any: a tensor or nothing
        for start in range(0, length, rows):
            some = [None if g is None else torch.zeros_like(g) for g in grads]
            for part, whole in zip(some, grads, strict=True):
                if part is not None and whole is not None:
                    part[start : start + rows] = whole[start : start + rows]
            found = backward(ctx, *some)
            total = [f if t is None else t + f for t, f in zip(total or [None] * len(found), found, strict=True)]
        return tuple(total)

    with put(_HeadLogProbs, backward=added):
        return original()


@breaks("train_step", "train.candidates.gradient")
def EntropyHidesCandidates(original: Original) -> Any:
    """Gives the token that was taken alone a gradient as soon as an objective has entropy in it."""
    backward = _HeadLogProbs.backward

    def first_alone(ctx: Any, *grads: Tensor | None) -> Any:
        logprobs, entropy = grads
        if logprobs is not None and entropy is not None:
            logprobs = torch.cat([logprobs[:, :1], torch.zeros_like(logprobs[:, 1:])], 1)
        return backward(ctx, logprobs, entropy)

    with put(_HeadLogProbs, backward=first_alone):
        return original()


@breaks("start", "train.combined.drawing")
def DropoutOfOldNames(original: Original, spec: TrainSpec) -> Any:
    """Turns dropouts off by the name that most models have, and leaves those that have another."""
    with put(hf, _RANDOM=("attention_dropout",)):
        return original()
