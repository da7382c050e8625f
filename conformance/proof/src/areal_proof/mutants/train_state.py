"""Trainers that save or load something else than their state.

Knows: what each forgets, invents or believes.
Does not know: the checks beyond their names.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import attrs
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from areal_core.contract.errors import CheckpointError, StorageError
from areal_core.contract.train import EngineInfo, RankContext, TrainSpec
from areal_core.weights.tensors import fingerprint
from areal_proof.mutants import mutant
from areal_proof.mutants.rows import Original, before, breaking, catches, on, put, row, then, within
from areal_proof.mutants.train_parts import copied, filled, parameters, replace, replaced
from areal_reference.train.engine import ReferenceTrainEngine
from areal_torch.optimizer import Optimizer
from areal_torch.resume import TrainingState
from areal_torch.trainer import running

ENGINE = "train/reference"
breaks = breaking(ENGINE, ReferenceTrainEngine)


def optimizer_of(engine: ReferenceTrainEngine) -> Optimizer:
    """Return the optimizer of a started engine."""
    assert engine.trainer is not None
    assert engine.trainer.optimizer is not None
    return engine.trainer.optimizer


def rewrite(state: Path, change: Callable[[dict[str, Tensor], dict[str, Any]], None]) -> None:
    """Change the tensors and the index of a state on disk, and make every proof in it fit. Any: json."""
    file = state / "rank-00000.safetensors"
    with safe_open(file, framework="pt") as held:
        header = dict(held.metadata())
        tensors = {name: held.get_tensor(name).clone() for name in held.keys()}  # noqa: SIM118
    index = json.loads((state / "state.json").read_text())
    index.pop("digest", None)
    change(tensors, index)
    header["fingerprints"] = json.dumps({name: fingerprint(tensor) for name, tensor in tensors.items()})
    save_file(tensors, file, metadata=header)
    digest = hashlib.sha256(json.dumps(index, sort_keys=True).encode()).hexdigest()
    (state / "state.json").write_text(json.dumps({**index, "digest": digest}))


@breaks("load_state", "train.state.exact", "train.machine.checkpoint")
def SecondMomentForgotten(original: Original, self: ReferenceTrainEngine) -> None:
    """Comes back with its second moments at zero."""
    original()
    for tensor in optimizer_of(self).moments["exp_avg_sq"].values():
        tensor.zero_()


@breaks("load_state", "train.state.exact")
def BiasCorrectionForgotten(original: Original, self: ReferenceTrainEngine) -> None:
    """Comes back with its schedule, and with the step of the bias correction one too small."""
    original()
    for state in optimizer_of(self).adam.state.values():
        state["step"].sub_(1.0).clamp_(min=0.0)


@breaks("load_state", "train.state.exact_untied", row="one-destination")
def UntiedHeadForgotten(original: Original, self: ReferenceTrainEngine) -> None:
    """Comes back without an untied head's weights."""
    head = parameters(self).get("lm_head.weight")
    held = None if head is None else head.detach().clone()
    original()
    if head is not None and held is not None:
        with torch.no_grad():
            head.copy_(held)


@breaks("load_state", "train.state.exact_critic")
def CriticHeadForgotten(original: Original, self: ReferenceTrainEngine) -> None:
    """Comes back with a critic's head at zero."""
    original()
    with torch.no_grad():
        for name, tensor in parameters(self).items():
            if name.startswith("score."):
                tensor.zero_()


@breaks("load_state", "train.state.exact_bfloat16",
        start=before(lambda self, spec: setattr(self, "_rounds", spec.dtype == "bfloat16")))  # fmt: skip
def StateRounded(original: Original, self: Any) -> None:
    """Saves in bfloat16 what it computes in bfloat16, its master weights included."""
    original()
    if self._rounds:
        with torch.no_grad():
            for tensor in parameters(self).values():
                tensor.copy_(tensor.bfloat16())


@breaks("load_state", "train.state.same_engine", start=before(lambda self: setattr(self, "loaded", set())))
def LoadsOnce(original: Original, self: Any, path: Path) -> None:
    """Takes a second `load_state` of one folder for a mistake."""
    if path not in self.loaded:
        original()
    self.loaded.add(path)


@breaks("send_weights", "train.state.loaded_weights", row="served-policy-changes", cached=None,
        train_step=then(lambda self: setattr(self, "cached", copied(parameters(self)))))  # fmt: skip
def SendsFromBeforeLoading(original: Original, self: Any) -> Any:
    """Sends, until the next step, what it sent before it loaded."""
    if self.cached is None or self.trainer is None:
        return original()
    with filled(parameters(self), self.cached):
        return original()


@breaks("save_state", "train.state.no_effect")
def SavingDropsMoments(original: Original, self: ReferenceTrainEngine) -> None:
    """Frees its moments for saving, and begins new ones."""
    original()
    for tensor in optimizer_of(self).moments["exp_avg"].values():
        tensor.zero_()


@mutant(ENGINE, killers=("train.state.moved",))
class StateByReference(ReferenceTrainEngine):
    """Keeps the tensors in a folder beside, and its absolute name in the state."""

    def save_state(self, path: Path) -> None:
        super().save_state(path)
        store = path.parent / f".{path.name}-store"
        shutil.rmtree(store, ignore_errors=True)
        path.rename(store)
        path.mkdir()
        (path / "where").write_text(str(path))

    def load_state(self, path: Path) -> None:
        named = Path((path / "where").read_text())
        if named != path:
            raise CheckpointError(f"the state {named} has gone", why=f"it was looked for as {path}")
        super().load_state(path.parent / f".{path.name}-store")


@breaks("load_state", "train.state.flipped")
def StateBelieved(original: Original, path: Path) -> None:
    """Believes whatever bytes a state has: it holds no proof of them."""
    copy = path.with_name(f"{path.name}.read")
    shutil.rmtree(copy, ignore_errors=True)
    if (path / "state.json").exists() and (path / "rank-00000.safetensors").exists():
        shutil.copytree(path, copy)
        try:
            rewrite(copy, lambda tensors, index: None)
        except (SafetensorError, OSError, ValueError, RuntimeError, KeyError):
            shutil.rmtree(copy)
    try:
        original(copy if copy.exists() else path)
    finally:
        shutil.rmtree(copy, ignore_errors=True)


class _OtherFacts(ReferenceTrainEngine):
    """The reference trainer, which writes something else into its states. No defect by itself."""

    dropped: ClassVar[tuple[str, ...]] = ()

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        """Start, then forget some facts."""
        info = super().start(spec, rank)
        assert self.trainer is not None
        state: TrainingState = self.trainer.state
        facts = {name: value for name, value in state.facts.items() if name not in self.dropped}
        replace(self, state=attrs.evolve(state, facts=facts))
        return info


@breaks("load_state", "train.state.other_head")
def FrozenStateLoaded(original: Original, self: ReferenceTrainEngine) -> None:
    """Takes the state of a frozen role, and goes on with the moments it has."""
    try:
        original()
    except CheckpointError:
        state = running(self.trainer).state
        frozen = attrs.evolve(state, optimizer=None, facts={**state.facts, "trained": False})
        with replaced(self, state=frozen):
            original()


def _is_pickle(file: Path) -> bool:
    return file.exists() and file.read_bytes()[:1] == b"\x80"


ROWS = breaks.rows(
    row("StepCountForgotten", "Comes back with its schedule at the beginning.", "train.state.exact",
        "train.machine.checkpoint", incident="OpenRLHF#1322", row="exactly-once",
        load_state=then(lambda self: setattr(optimizer_of(self), "steps", 0))),
    row("SavingStateDraws", "Draws a random name for every state, after it has saved it.", "train.state.no_effect",
        save_state=then(lambda: torch.randint(1 << 30, ()))),
    row("FirstStateKept", "Does not save over a state that is there.", "train.state.replaces",
        "train.machine.checkpoint", save_state=lambda original, path: original(path) if not path.exists() else None),
    row("MissingStateIsFresh", "Takes a state that is not there for the beginning of a run.", "train.state.missing",
        load_state=lambda original, path: original(path) if (path / "state.json").exists() else None),
    row("OtherModelsLoaded", "Loads every tensor of its own that a state holds, and does not ask of what model it is.",
        "train.state.other_model", base=_OtherFacts, dropped=("architecture", "shapes")),
    row("StateWithPickle", "Keeps the number of its steps in a pickle.", "train.state.no_pickle",
        save_state=then(lambda path: torch.save({"steps": 1}, path / "trainer.pt"))),
    row("StateErrorsSwallowed", "Goes on without a state when the disk is full.", "train.disk.state_in_the_way",
        "train.disk.state_full", save_state=catches(StorageError, lambda: None)),
    row("TornStateIsBare", "Lets the file format say that a file is torn.", "train.state.truncated",
        load_state=catches(CheckpointError, lambda error, path: SafetensorError(str(error)) if path.exists()
            and (path / "state.json").exists() else error)),
    row("PartialStateLeft", "Leaves what it had written when the disk is full.", "train.disk.state_full",
        save_state=on(StorageError, lambda path: path.with_name(f"{path.name}.tmp").mkdir(exist_ok=True)
            if path.parent.is_dir() else None)),
    row("RandomStateForgotten", "Comes back with the random numbers it would have drawn anyway.", "train.state.exact",
        "train.state.same_engine", load_state=within(lambda: torch.random.fork_rng(devices=()))),
    row("VersionForgotten", "Comes back with the version it has.", "train.state.version", incident="AReaL#1388",
        row="staleness-bound", load_state=within(lambda self: put(self, version=self.version))),
    row("SkippedStepsSaved", "Saves the number of calls of `train_step` as the number of its steps.",
        "train.state.skipped_step", incident="NeMo-RL#3480", row="exactly-once", skipped=0,
        train_step=then(lambda self, result: setattr(self, "skipped", self.skipped + (not result.stepped))),
        save_state=within(lambda self: put(optimizer_of(self), steps=optimizer_of(self).steps + self.skipped))),
    row("TornStateHalfLoaded", "Begins to overwrite its weights before it knows that the state is whole.",
        "train.state.truncated", "train.state.other_model",
        load_state=on(CheckpointError, lambda self: next(iter(parameters(self).values())).data.zero_())),
    row("StateUnpickled", "Tries to unpickle a state that is no safetensors file.", "train.state.no_pickle",
        load_state=on(CheckpointError, lambda path: pickle.loads((path / "rank-00000.safetensors").read_bytes())
            if _is_pickle(path / "rank-00000.safetensors") else None)),
)  # fmt: skip
