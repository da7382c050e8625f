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

from areal_core.contract.batch import Batch
from areal_core.contract.errors import CheckpointError, StorageError
from areal_core.contract.train import EngineInfo, Objective, RankContext, TrainReport, TrainSpec
from areal_core.contract.weights import Receipt, WeightSink
from areal_core.weights.fingerprint import fingerprint
from areal_proof.mutants import mutant
from areal_proof.mutants.train_parts import parameters, replace
from areal_reference.train.engine import ReferenceTrainEngine
from areal_torch.optimizer import Optimizer
from areal_torch.resume import TrainingState

ENGINE = "train/reference"


def optimizer_of(engine: ReferenceTrainEngine) -> Optimizer:
    """Return the optimizer of a started engine."""
    assert engine._trainer is not None
    assert engine._trainer.optimizer is not None
    return engine._trainer.optimizer


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


@mutant(ENGINE, killers=("train.state.exact", "train.machine.checkpoint"))
class SecondMomentForgotten(ReferenceTrainEngine):
    """Comes back with its second moments at zero."""

    def load_state(self, path: Path) -> None:
        super().load_state(path)
        for tensor in optimizer_of(self).moments["exp_avg_sq"].values():
            tensor.zero_()


@mutant(ENGINE, killers=("train.state.exact", "train.machine.checkpoint"), incident="OpenRLHF#1322", row="exactly-once")
class StepCountForgotten(ReferenceTrainEngine):
    """Comes back with its schedule at the beginning."""

    def load_state(self, path: Path) -> None:
        super().load_state(path)
        optimizer_of(self).steps = 0


@mutant(ENGINE, killers=("train.state.exact",))
class BiasCorrectionForgotten(ReferenceTrainEngine):
    """Comes back with its schedule, and with the step of the bias correction one too small."""

    def load_state(self, path: Path) -> None:
        super().load_state(path)
        for state in optimizer_of(self)._adam.state.values():
            state["step"].sub_(1.0).clamp_(min=0.0)


@mutant(ENGINE, killers=("train.state.exact", "train.state.same_engine"))
class RandomStateForgotten(ReferenceTrainEngine):
    """Comes back with the random numbers it would have drawn anyway."""

    def load_state(self, path: Path) -> None:
        held = torch.get_rng_state()
        super().load_state(path)
        torch.set_rng_state(held)


@mutant(ENGINE, killers=("train.state.exact_untied",), row="one-destination")
class UntiedHeadForgotten(ReferenceTrainEngine):
    """Comes back without an untied head's weights."""

    def load_state(self, path: Path) -> None:
        head = parameters(self).get("lm_head.weight")
        held = None if head is None else head.detach().clone()
        super().load_state(path)
        if head is not None and held is not None:
            with torch.no_grad():
                head.copy_(held)


@mutant(ENGINE, killers=("train.state.exact_critic",))
class CriticHeadForgotten(ReferenceTrainEngine):
    """Comes back with a critic's head at zero."""

    def load_state(self, path: Path) -> None:
        super().load_state(path)
        with torch.no_grad():
            for name, tensor in parameters(self).items():
                if name.startswith("score."):
                    tensor.zero_()


@mutant(ENGINE, killers=("train.state.exact_bfloat16",))
class StateRounded(ReferenceTrainEngine):
    """Saves in bfloat16 what it computes in bfloat16, its master weights included."""

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        self._rounds = spec.dtype == "bfloat16"
        return super().start(spec, rank)

    def load_state(self, path: Path) -> None:
        super().load_state(path)
        if self._rounds:
            with torch.no_grad():
                for tensor in parameters(self).values():
                    tensor.copy_(tensor.bfloat16())


@mutant(ENGINE, killers=("train.state.same_engine",))
class LoadsOnce(ReferenceTrainEngine):
    """Takes a second `load_state` of one folder for a mistake."""

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        self._loaded: set[Path] = set()
        return super().start(spec, rank)

    def load_state(self, path: Path) -> None:
        if path not in self._loaded:
            super().load_state(path)
        self._loaded.add(path)


@mutant(ENGINE, killers=("train.state.loaded_weights",), row="served-policy-changes")
class SendsFromBeforeLoading(ReferenceTrainEngine):
    """Sends, until the next step, what it sent before it loaded."""

    _cached: dict[str, Tensor] | None = None

    def train_step(self, batch: Batch, objective: Objective) -> TrainReport:
        report = super().train_step(batch, objective)
        self._cached = {name: tensor.detach().clone() for name, tensor in parameters(self).items()}
        return report

    def send_weights(self, sink: WeightSink | None, version: int) -> Receipt | None:
        if self._cached is None or self._trainer is None:
            return super().send_weights(sink, version)
        held = {name: tensor.detach().clone() for name, tensor in parameters(self).items()}
        with torch.no_grad():
            for name, tensor in parameters(self).items():
                tensor.copy_(self._cached[name])
            try:
                return super().send_weights(sink, version)
            finally:
                for name, tensor in parameters(self).items():
                    tensor.copy_(held[name])


@mutant(ENGINE, killers=("train.state.version",), incident="AReaL#1388", row="staleness-bound")
class VersionForgotten(ReferenceTrainEngine):
    """Comes back with the version it has."""

    def load_state(self, path: Path) -> None:
        version = self.version
        super().load_state(path)
        self.version = version


@mutant(ENGINE, killers=("train.state.no_effect",))
class SavingStateDraws(ReferenceTrainEngine):
    """Draws a random name for every state, after it has saved it."""

    def save_state(self, path: Path) -> None:
        super().save_state(path)
        torch.randint(1 << 30, ())


@mutant(ENGINE, killers=("train.state.no_effect",))
class SavingDropsMoments(ReferenceTrainEngine):
    """Frees its moments for saving, and begins new ones."""

    def save_state(self, path: Path) -> None:
        super().save_state(path)
        for tensor in optimizer_of(self).moments["exp_avg"].values():
            tensor.zero_()


@mutant(ENGINE, killers=("train.state.replaces", "train.machine.checkpoint"))
class FirstStateKept(ReferenceTrainEngine):
    """Does not save over a state that is there."""

    def save_state(self, path: Path) -> None:
        if not path.exists():
            super().save_state(path)


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


@mutant(ENGINE, killers=("train.state.missing",))
class MissingStateIsFresh(ReferenceTrainEngine):
    """Takes a state that is not there for the beginning of a run."""

    def load_state(self, path: Path) -> None:
        if (path / "state.json").exists():
            super().load_state(path)


@mutant(ENGINE, killers=("train.state.truncated",))
class TornStateIsBare(ReferenceTrainEngine):
    """Lets the file format say that a file is torn."""

    def load_state(self, path: Path) -> None:
        try:
            super().load_state(path)
        except CheckpointError as error:
            if path.exists() and (path / "state.json").exists():
                raise SafetensorError(str(error)) from None
            raise


@mutant(ENGINE, killers=("train.state.truncated", "train.state.other_model"))
class TornStateHalfLoaded(ReferenceTrainEngine):
    """Begins to overwrite its weights before it knows that the state is whole."""

    def load_state(self, path: Path) -> None:
        try:
            super().load_state(path)
        except CheckpointError:
            with torch.no_grad():
                next(iter(parameters(self).values())).zero_()
            raise


@mutant(ENGINE, killers=("train.state.flipped",))
class StateBelieved(ReferenceTrainEngine):
    """Believes whatever bytes a state has: it holds no proof of them."""

    def load_state(self, path: Path) -> None:
        copy = path.with_name(f"{path.name}.read")
        shutil.rmtree(copy, ignore_errors=True)
        if (path / "state.json").exists() and (path / "rank-00000.safetensors").exists():
            shutil.copytree(path, copy)
            try:
                rewrite(copy, lambda tensors, index: None)
            except (SafetensorError, OSError, ValueError, RuntimeError, KeyError):
                shutil.rmtree(copy)
        try:
            super().load_state(copy if copy.exists() else path)
        finally:
            shutil.rmtree(copy, ignore_errors=True)


class _OtherFacts(ReferenceTrainEngine):
    """The reference trainer, which writes something else into its states. Not a sin by itself."""

    dropped: ClassVar[tuple[str, ...]] = ()

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        """Start, then forget some facts."""
        info = super().start(spec, rank)
        assert self._trainer is not None
        state: TrainingState = self._trainer.state
        facts = {name: value for name, value in state.facts.items() if name not in self.dropped}
        replace(self, state=attrs.evolve(state, facts=facts))
        return info


@mutant(ENGINE, killers=("train.state.other_model",))
class OtherModelsLoaded(_OtherFacts):
    """Loads every tensor of its own that a state holds, and does not ask of what model it is."""

    dropped = ("architecture", "shapes")


@mutant(ENGINE, killers=("train.state.other_head",))
class FrozenStateLoaded(ReferenceTrainEngine):
    """Takes the state of a frozen role, and goes on with the moments it has."""

    def load_state(self, path: Path) -> None:
        assert self._trainer is not None
        whole = self._trainer
        try:
            super().load_state(path)
        except CheckpointError:
            facts = {**whole.state.facts, "trained": False}
            replace(self, state=attrs.evolve(whole.state, optimizer=None, facts=facts))
            try:
                super().load_state(path)
            finally:
                self._trainer = whole


@mutant(ENGINE, killers=("train.state.no_pickle",))
class StateWithPickle(ReferenceTrainEngine):
    """Keeps the number of its steps in a pickle."""

    def save_state(self, path: Path) -> None:
        super().save_state(path)
        torch.save({"steps": 1}, path / "trainer.pt")


@mutant(ENGINE, killers=("train.state.no_pickle",))
class StateUnpickled(ReferenceTrainEngine):
    """Tries to unpickle a state that is no safetensors file."""

    def load_state(self, path: Path) -> None:
        try:
            super().load_state(path)
        except CheckpointError:
            file = path / "rank-00000.safetensors"
            if file.exists() and file.read_bytes()[:1] == b"\x80":
                pickle.loads(file.read_bytes())
            raise


@mutant(ENGINE, killers=("train.disk.state_in_the_way", "train.disk.state_full"))
class StateErrorsSwallowed(ReferenceTrainEngine):
    """Goes on without a state when the disk is full."""

    def save_state(self, path: Path) -> None:
        try:
            super().save_state(path)
        except StorageError:
            return


@mutant(ENGINE, killers=("train.disk.state_full",))
class PartialStateLeft(ReferenceTrainEngine):
    """Leaves what it had written when the disk is full."""

    def save_state(self, path: Path) -> None:
        try:
            super().save_state(path)
        except StorageError:
            if path.parent.is_dir():
                path.with_name(f"{path.name}.tmp").mkdir(exist_ok=True)
            raise


@mutant(
    ENGINE,
    killers=("train.state.skipped_step",),
    incident="NeMo-RL#3480",
    row="exactly-once",
)
class SkippedStepsSaved(ReferenceTrainEngine):
    """Saves the number of calls of `train_step` as the number of its steps."""

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        self._skipped = 0
        return super().start(spec, rank)

    def train_step(self, batch: Batch, objective: Objective) -> TrainReport:
        report = super().train_step(batch, objective)
        self._skipped += not report.stepped
        return report

    def save_state(self, path: Path) -> None:
        optimizer = optimizer_of(self)
        optimizer.steps += self._skipped
        try:
            super().save_state(path)
        finally:
            optimizer.steps -= self._skipped
