"""Backends that are right until something outgrows a chunk, a table, a piece, two bytes or a file.

Knows: where the reference backends go another way.
Does not know: which checks cross a threshold, beyond their names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import torch
from safetensors.torch import load_file
from torch import Tensor

from areal_core.config.model_folder import read_headers
from areal_core.contract.batch import Batch
from areal_core.contract.inference import GenerationRequest
from areal_local.transports.disk import DiskTransport
from areal_proof.mutants import mutant
from areal_proof.mutants.rows import Original, breaking, given, gives, put, row, then
from areal_proof.mutants.train_parts import Columns, OtherModel, parameters
from areal_proof.mutants.train_ranks import Sharing
from areal_proof.mutants.weight_parts import breaking_ends
from areal_proof.second.train import columns as second_columns
from areal_proof.second.train.engine import Started
from areal_reference.infer.engine import ReferenceInferenceEngine
from areal_reference.train.engine import ReferenceTrainEngine
from areal_torch.logprobs import _HeadLogProbs

breaks_train = breaking("train/reference", ReferenceTrainEngine)
breaks_infer = breaking("infer/reference", ReferenceInferenceEngine)
_, breaks_sink, _ = breaking_ends("transport/disk", DiskTransport)

_WORD = 1 << 16
_PACK = 4096
_GROUP = 8


@breaks_train("train_step", "train.threshold.logits")
def LaterChunksUntrained(original: Original) -> Any:
    """Trains on the first chunk of logits of each micro-batch; the others add nothing to the gradient."""
    backward = _HeadLogProbs.backward

    def of_first(ctx: Any, *grads: Tensor | None) -> Any:
        rows = ctx.settings[1]
        return backward(ctx, *(None if g is None else torch.cat([g[:rows], torch.zeros_like(g[rows:])]) for g in grads))

    with put(_HeadLogProbs, backward=of_first):
        return original()


@breaks_train("train_step", "train.threshold.logits", "train.threshold.vocabulary")
def ComputedAgainAtTemperatureTwo(original: Original) -> Any:
    """Computes logits again at twice the temperature where it has not kept them."""
    backward = _HeadLogProbs.backward

    def again(ctx: Any, *grads: Tensor | None) -> Any:
        temperature, rows, keep, vocabulary = ctx.settings
        ctx.settings = (temperature if keep else 2.0 * temperature), rows, keep, vocabulary
        return backward(ctx, *grads)

    with put(_HeadLogProbs, backward=again):
        return original()


@breaks_train("train_step", "train.threshold.logits")
def BiasOfTheLastChunk(original: Original) -> Any:
    """Gives the bias of a head the gradient of the last chunk of logits alone."""
    backward = _HeadLogProbs.backward

    def of_last(ctx: Any, *grads: Tensor | None) -> Any:
        found, (rows, number) = list(backward(ctx, *grads)), (ctx.settings[1], len(ctx.saved_tensors[0]))
        if found[2] is not None:
            last = torch.arange(number) >= (number - 1) // rows * rows
            found[2] = backward(ctx, *(None if g is None else (g.T * last).T for g in grads))[2]
        return tuple(found)

    with put(_HeadLogProbs, backward=of_last):
        return original()


@breaks_train("train_step", "train.threshold.logits", "train.zoo.phi")
def BiasAtTemperatureOne(original: Original) -> Any:
    """Gives the bias of a head its gradient before logits are divided by the temperature."""
    backward = _HeadLogProbs.backward

    def undivided(ctx: Any, *grads: Tensor | None) -> Any:
        found = list(backward(ctx, *grads))
        found[2] = None if found[2] is None else found[2] * ctx.settings[0]
        return tuple(found)

    with put(_HeadLogProbs, backward=undivided):
        return original()


@breaks_train("columns", "train.threshold.pack", base=OtherModel, part=("kind", Columns))
def PacksOfFourThousand(original: Original, batch: Batch) -> Any:
    """Gives tokens beyond the first 4,096 of a micro-batch no gradient."""
    beyond = torch.arange(batch.num_tokens) >= _PACK
    return {name: torch.where(beyond, column.detach(), column) for name, column in original().items()}


def _beyond_the_first_file(folder: str) -> set[str]:
    """Return the names of tensors in all files of a folder but the first."""
    first, *others = sorted(Path(folder).glob("*.safetensors"))
    return {name for file in others for name in load_file(file)} - set(load_file(first))


def _beyond(folder: str, bits: int) -> set[str]:
    """Return the names of tensors of a folder whose offsets have more than so many bits."""
    return {name for name, header in read_headers(Path(folder)).items() if header["data_offsets"][0] >> bits}


def _left_empty(tensors: Mapping[str, Tensor], folder: str) -> None:
    for name in _beyond_the_first_file(folder) & set(tensors):
        tensors[name].data.zero_()


def _from_the_hole(tensors: Mapping[str, Tensor], folder: str) -> None:
    for name in _beyond(folder, 32) & set(tensors):
        tensors[name].data.zero_()


def _served(engine: ReferenceInferenceEngine) -> dict[str, Tensor]:
    return dict(engine.running.loaded.model.named_parameters())


def _short(batch: Batch) -> Batch:
    return batch.with_tokens(input_ids=batch.tokens["input_ids"] % _WORD)


TRAIN_ROWS = breaks_train.rows(
    row("IdsOfTwoBytes", "Keeps token ids in two bytes.", "train.threshold.vocabulary",
        forward=lambda original, batch, outputs: original(_short(batch), outputs).with_tokens(
            input_ids=batch.tokens["input_ids"]),
        train_step=lambda original, batch, objective: original(_short(batch), objective)),
    row("NeverQuiteFull", "Fills a micro-batch up to one token less than it may have.", "train.threshold.pack",
        start=given(max_tokens_per_microbatch=lambda spec: max(spec.max_tokens_per_microbatch - 1, 41))),
    row("TrainsTheFirstFile", "Reads the first file of a folder and leaves other tensors empty.",
        "train.threshold.files", start=then(lambda self, spec: _left_empty(parameters(self), spec.model_path))),
    row("OffsetsOfFourBytes", "Keeps where a tensor begins in its file in 32 bits.", "train.threshold.offsets",
        start=then(lambda self, spec: _from_the_hole(parameters(self), spec.model_path))),
)  # fmt: skip


@breaks_infer("generate", "infer.threshold.requests", __init__=then(lambda self: setattr(self, "groups", Counter())))
async def EightMembersAtMost(original: Original, self: Any, request: GenerationRequest) -> Any:
    """Lets members of a group beyond the eighth draw as the eighth does."""
    sampling, ids = request.sampling, request.input_ids
    self.groups[ids] += 1
    try:
        if sampling.seed is not None and self.groups[ids] > _GROUP:
            return await original(attrs.evolve(request, sampling=attrs.evolve(sampling, seed=0)))
        return await original()
    finally:
        self.groups[ids] -= 1


@breaks_infer("start", "infer.threshold.length")
async def GrownCacheLosesItsEnd(original: Original, self: ReferenceInferenceEngine) -> Any:
    """Loses the last entry of every row when its cache grows in length."""
    result, cache = await original(), self.running.loop.runner.cache
    grow = cache.grow

    def losing(num_rows: int, length: int) -> None:
        before = cache.length
        grow(num_rows, length)
        if cache.length > before:
            with torch.inference_mode():
                for slab in (*cache.keys, *cache.values):
                    slab[:, :, before - 1] = 0.0

    cache.grow = losing  # type: ignore[method-assign]
    return result


def _forgotten(self: ReferenceInferenceEngine, request: GenerationRequest) -> GenerationRequest:
    most = self.running.loop.config.prefill_tokens
    return attrs.evolve(request, input_ids=request.input_ids[-most - 1 :])


INFER_ROWS = breaks_infer.rows(
    row("PromptsOfOnePiece", "Reads of a prompt what fits the step that takes it in, its end.",
        "infer.threshold.prompt",
        generate=lambda original, self, request: original(_forgotten(self, request))),
    row("TellsIdsOfTwoBytes", "Tells output ids in two bytes.", "infer.threshold.vocabulary",
        generate=gives(output_ids=lambda result: tuple(token % _WORD for token in result.output_ids))),
    row("ServesTheFirstFile", "Reads the first file of a folder and leaves other tensors empty.",
        "infer.threshold.files",
        start=then(lambda self, spec: _left_empty(_served(self), spec.model_path))),
    row("ServesOffsetsOfFourBytes", "Keeps where a tensor begins in its file in 32 bits.", "infer.threshold.offsets",
        start=then(lambda self, spec: _from_the_hole(_served(self), spec.model_path))),
)  # fmt: skip


@breaks_sink("write", "transport.threshold.bytes")
def FullBucketsLackAByte(original: Original, self: Any, bucket: Mapping[str, Tensor]) -> None:
    """Loses the last byte of a tensor that fills a bucket exactly."""
    kept = {}
    for name, tensor in bucket.items():
        if tensor.nbytes == self.bucket_bytes and tensor.is_contiguous():
            tensor = tensor.clone()
            tensor.reshape(-1).view(torch.uint8)[-1] ^= 1
        kept[name] = tensor
    original(kept)


class _Untrained(second_columns.Columns):
    def log_p(self, hidden_RD: Tensor) -> Tensor:
        rows = max(1, second_columns.CHUNK_LOGITS // self.network.architecture.vocab)
        whole = super().log_p(hidden_RD)
        return torch.cat([whole[:rows], whole[rows:].detach()])


@mutant("train/second", killers=("train.ranks.thresholds",), ranks=2)
class LaterChunksOfRanksUntrained(Sharing):
    """Of several ranks none trains on chunks of logits beyond its first."""

    def spoil(self, here: Started) -> None:
        """Put other columns in their place."""
        fields = {field.name: getattr(here.columns, field.name) for field in attrs.fields(second_columns.Columns)}
        self.started = attrs.evolve(here, columns=_Untrained(**fields))
