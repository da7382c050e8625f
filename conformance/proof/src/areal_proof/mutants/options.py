"""Backends that accept an option and do not obey it, or go wrong only where one is set.

Knows: which options the reference backends have variants of.
Does not know: which checks are made with them, beyond their names.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import attrs
from attrs import frozen
from torch import Tensor

from areal_agents.workflows.multi_turn import MultiTurnConfig
from areal_conformance.adapter import Variant
from areal_conformance.target import Target
from areal_core.contract.data import Trajectory
from areal_core.contract.inference import GenerationRequest
from areal_core.contract.train import EngineInfo, RankContext, TrainSpec
from areal_core.plugins.registry import Registry
from areal_local.scheduler.config import LocalConfig
from areal_local.scheduler.local_scheduler import LocalScheduler
from areal_local.transports.collective import CollectiveTransport
from areal_local.transports.config import DiskConfig
from areal_local.transports.disk import DiskTransport
from areal_local.transports.shm import ShmTransport
from areal_proof.mutants import Breaks, Mutant, mutant
from areal_proof.mutants.rows import before, breaking, gives, row, then
from areal_proof.mutants.train_ranks import Sharing, _Averaged
from areal_proof.mutants.workflow_parts import Bent
from areal_proof.second.train.engine import Started
from areal_proof.second.train.ranks import Ranks
from areal_reference.infer.config import ReferenceInferenceConfig
from areal_reference.infer.engine import ReferenceInferenceEngine
from areal_reference.infer.runner import ModelRunner
from areal_reference.train.config import ReferenceTrainConfig
from areal_reference.train.engine import ReferenceTrainEngine
from areal_tasks.workflows.single_turn import SingleTurnConfig, SingleTurnWorkflow

_SMALL_GIB = 0.01
_KEPT = 8


TRAIN_ROWS = breaking("train/reference", ReferenceTrainEngine).rows(
    row("CheckpointingIgnored", "Takes the option activation_checkpointing, and keeps all activations.",
        "train.options.shown",
        __init__=lambda original: original(ReferenceTrainConfig())),
    row("UnclippedWhereComputedAgain", "Clips no gradient where activations are recomputed.",
        "train.options.checks",
        start=lambda original, self, spec, rank: original(_unclipped(spec) if self.config.activation_checkpointing
            else spec, rank)),
    row("OptionWithoutItsPackage", "Takes an option for which a package is missing, and ends in an error of Python's.",
        "train.options.started",
        start=before(lambda self: ModuleNotFoundError("No module named 'again'")
            if self.config.activation_checkpointing else None)),
)  # fmt: skip


def _unclipped(spec: Any) -> Any:  # Any: a TrainSpec
    optimizer = None if spec.optimizer is None else attrs.evolve(spec.optimizer, max_grad_norm=0.0)
    return attrs.evolve(spec, optimizer=optimizer)


@mutant("train/second", killers=("train.options.ranks",), ranks=2)
class AveragedWhereComputedAgain(Sharing):
    """Of several ranks that recompute activations, gradients are divided by the number of ranks."""

    def spoil(self, here: Started) -> None:
        """Put other ranks in their place."""
        if here.columns.network.recompute:
            self.started = attrs.evolve(here, ranks=_Averaged(**attrs.asdict(here.ranks, recurse=False)))


@mutant("train/second", killers=("train.options.shown_on_ranks",), ranks=2)
class AllKeptOnSeveralRanks(Sharing):
    """Takes the option activation_checkpointing, and keeps all activations where there are other ranks."""

    def spoil(self, here: Started) -> None:
        """Compute nothing again."""
        network = attrs.evolve(here.columns.network, recompute=False)
        self.started = attrs.evolve(here, columns=attrs.evolve(here.columns, network=network))


@mutant("train/second", killers=("train.options.four",), ranks=4)
class TensorRanksAveragedWhereComputedAgain(Sharing):
    """Where data and tensor ranks recompute activations, gradients are divided by the number of tensor ranks."""

    def spoil(self, here: Started) -> None:
        """Put other ranks in their place."""
        if here.columns.network.recompute and 1 < here.ranks.tensor_size < here.ranks.size:
            self.started = attrs.evolve(here, ranks=_Halved(**attrs.asdict(here.ranks, recurse=False)))


class _Halved(Ranks):
    def add_up(self, tensors: list[Tensor]) -> list[Tensor]:
        return [tensor / self.tensor_size for tensor in super().add_up(tensors)]


@mutant("train/second", killers=("train.options.together",), ranks=2)
class NoOptionForTensorRanks(Sharing):
    """Takes an option on data ranks, and ends in an error of Python's where tensor ranks share the layers."""

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        """Refuse in a way that nobody can tell from a fault."""
        if self._config.activation_checkpointing and dict(spec.layout).get("t", 1) > 1:
            raise NotImplementedError("layers that are shared are not computed again")
        return super().start(spec, rank)


def _forgetting(self: ReferenceInferenceEngine, request: GenerationRequest) -> GenerationRequest:
    small = self.running.loop.config.cache_gib < _SMALL_GIB
    return attrs.evolve(request, input_ids=request.input_ids[-_KEPT:]) if small else request


class _OneTileOfEach(ModelRunner):
    __slots__ = ()

    def tiles(self, positions: Any, tile: int) -> list[Any]:
        whole = super().tiles(positions, len(positions))
        return [part[:tile] for part in whole]


INFER_ROWS = breaking("infer/reference", ReferenceInferenceEngine).rows(
    row("CacheSizeIgnored", "Takes the option cache_gib, and lets the cache grow.", "infer.options.shown",
        __init__=lambda original: original(ReferenceInferenceConfig())),
    row("SmallCachesForget", "Forgets the beginning of a prompt where the cache is small.", "infer.options.checks",
        generate=lambda original, self, request: original(_forgetting(self, request))),
    row("OneTileAStep", "In deterministic mode computes no more rows of a length than a tile has; the rest are zeros.",
        "infer.options.checks",
        start=then(lambda self: setattr(self.running.loop.runner, "__class__", _OneTileOfEach))),
)  # fmt: skip


DISK_ROWS = breaking("transport/disk", DiskTransport).rows(
    row("NeverSynced", "Takes the option fsync, and waits for no disk.", "transport.options.shown",
        open=gives(location=lambda result: {**result.location, "fsync": 0})),
    row("BucketsOfItsOwn", "Has each end ask for buckets by its own options, which those of workers do not have.",
        "transport.options.told",
        sink=lambda original, self, offer: original(attrs.evolve(offer, location={**offer.location,
            "bucket_bytes": self.config.bucket_bytes}))),
    row("FromWhereItWorks", "Offers a folder by its path from where the controller works.",
        "transport.options.folders",
        open=gives(location=lambda result: {**result.location, "folder": os.path.relpath(result.location["folder"])})),
    row("FolderTakenAsItComes", "Leaves what the system says of a folder that can be none as it is.",
        "transport.options.no_folder",
        open=before(lambda self: NotADirectoryError(self.config.root) if Path(self.config.root).is_file() else None)),
)  # fmt: skip


COLLECTIVE_ROWS = breaking("transport/collective", CollectiveTransport).rows(
    row("FanOutIgnored", "Takes the option fan_out, and hands everything from each receiver to the next.",
        "transport.options.shown",
        open=gives(location=lambda result: {**result.location, "fan_out": "auto"})),
)  # fmt: skip


SHM_ROWS = breaking("transport/shm", ShmTransport).rows(
    row("FilesOutliveIt", "Leaves the files of the option backing: file.", "transport.options.checks",
        close=lambda original, self: None if self.in_files else original(), in_files=False,
        __init__=then(lambda self, config: setattr(self, "in_files", config is not None and config.backing == "file"))),
)  # fmt: skip


SCHEDULER_ROWS = breaking("scheduler/local", LocalScheduler).rows(
    row("NetworkIgnored", "Takes the option listen_on_all, and listens where nobody of another machine can call.",
        "scheduler.options.shown",
        __init__=lambda original, config: original(attrs.evolve(config, listen_on_all=False))),
    row("StallsIgnored", "Takes the option progress_timeout_s, and lets a run that does not move be.",
        "scheduler.options.shown",
        __init__=lambda original, config: original(attrs.evolve(config, progress_timeout_s=0.0))),
    row("StallsAlwaysRestart", "Lets a run that does not move start again, where the options say that it ends.",
        "scheduler.options.shown", __init__=lambda original, config: original(attrs.evolve(config, stalled="restart"))),
    row("NetworksOutliveIt", "Leaves workers that listen to a network at work when it is closed.",
        "scheduler.options.checks",
        close=lambda original, self: None if self.config.listen_on_all else original()),
    row("LogsFlattened", "Takes the last part of the option log_dir alone, in the folder that it finds itself in.",
        "scheduler.log.folder",
        __init__=lambda original, config: original(attrs.evolve(config, log_dir=str(Path(config.log_dir).parents[1])))),
)  # fmt: skip


@frozen(kw_only=True)
class _AnyScheduler(LocalConfig):
    host: str = "127.0.0.1"
    stop_timeout_s: float = 5.0


@frozen(kw_only=True)
class _AnyGenerator(ReferenceInferenceConfig):
    prefill_tokens: int = 8192


@frozen(kw_only=True)
class _AnyFolder(DiskConfig):
    bucket_bytes: int = 1 << 20


@frozen(kw_only=True)
class _AnyTrainer(ReferenceTrainConfig):
    activation_checkpointing: bool | str = False  # type: ignore[assignment]


@frozen(kw_only=True)
class _AnyTurns(MultiTurnConfig):
    max_turns: int = 4


def _taking(config: type) -> Breaks:
    def breaks(whole: Target) -> Target:
        assert whole.manifest is not None
        manifest = attrs.evolve(whole.manifest, config=f"{__name__}:{config.__name__}")
        factory = whole.registry.load(whole.role, whole.name)
        return attrs.evolve(
            whole, manifest=manifest, registry=Registry(entries={(whole.role, whole.name): (manifest, factory)})
        )

    return breaks


BOUNDS = tuple(
    Mutant(
        name=f"AnythingGoesIn{role.title()}",
        of=of,
        defect=f"Takes any value of an option {what}.",
        killers=(f"{role}.options.bounds",),
        breaks=_taking(config),
    )
    for role, of, what, config in (
        ("scheduler", "scheduler/local", "of an address or a time", _AnyScheduler),
        ("infer", "infer/reference", "that counts", _AnyGenerator),
        ("train", "train/reference", "that is on or off", _AnyTrainer),
        ("transport", "transport/disk", "of bytes", _AnyFolder),
        ("workflow", "workflow/multi_turn", "that counts turns", _AnyTurns),
    )
)


@breaking("workflow/single_turn", Bent)("turned", "workflow.options.checks", chats=False,
        __init__=then(lambda self, config: setattr(self, "chats", config is not None and config.chat)))  # fmt: skip
def UnpaidChats(self: Any, trajectory: Trajectory) -> Any:
    """Rewards nothing where a text is put through the chat template."""
    return attrs.evolve(trajectory, reward=0.0) if self.chats else trajectory


WORKFLOW_ROWS = breaking("workflow/single_turn", SingleTurnWorkflow).rows(
    row("OptionsThrownAway", "Makes every episode as if no options had been given.", "workflow.options.shown",
        __init__=lambda original: original(SingleTurnConfig())),
)  # fmt: skip


@mutant("infer/reference", killers=("static.options.accounted",))
def OptionNobodyLooksAt(whole: Target) -> Target:
    """Has options that no variant has, and says of none why."""
    adapter = attrs.evolve(whole.adapter, variants={"one": Variant(options={"cache_gib": 1.0})}, thresholds=())
    return attrs.evolve(whole, adapter=adapter)


@mutant("infer/reference", killers=("static.sizes.accounted",))
def NumberNobodyCrosses(whole: Target) -> Target:
    """Has numbers at which it goes another way, says of one why no threshold names it, and of the others nothing."""
    return attrs.evolve(whole, adapter=attrs.evolve(whole.adapter, thresholds=()))


@mutant("infer/reference", killers=("static.options.accounted",))
def VariantThatShowsNothing(whole: Target) -> Target:
    """Has a variant of each option, and of none a word about what it does."""
    silent = {name: attrs.evolve(one, shows=None) for name, one in whole.adapter.variants.items()}
    return attrs.evolve(whole, adapter=attrs.evolve(whole.adapter, variants=silent))
