"""Every error areal raises, each with a code, what happened, why, and the fix.

Codes go by family: a code ending in 00 is the class that the others derive from. Each has a page, `docs/errors/`.
Retryable errors are retried by the one place that retries (`rollout.executor`); all others end what raised them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar


class ArealError(Exception):
    """Base of every error of ours; says what happened, why, and how to fix it."""

    code: ClassVar[str] = "E000"
    retryable: ClassVar[bool] = False

    def __init_subclass__(cls, *, code: str = "", retryable: bool = False) -> None:
        super().__init_subclass__()
        cls.code = code or cls.code
        cls.retryable = retryable or cls.retryable

    def __init__(self, what: str, *, why: str = "", fix: str = "") -> None:
        super().__init__(what)
        self.what, self.why, self.fix = what, why, fix

    def __str__(self) -> str:
        lines = [f"{self.what} [AREAL-{self.code}]"]
        if self.why:
            lines.append(f"  why: {self.why}")
        if self.fix:
            lines.append(f"  fix: {self.fix}")
        return "\n".join(lines)

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.what, self.why, self.fix)


def _rebuild(kind: type[ArealError], what: str, why: str, fix: str) -> ArealError:
    return kind(what, why=why, fix=fix)


class PluginError(ArealError, code="E100"):
    """A plugin cannot be used."""


class BackendNotFound(PluginError, LookupError, code="E101"):
    """No installed plugin has the name asked for."""


class EngineMissing(PluginError, ImportError, code="E102"):
    """The plugin is installed without the engine it drives."""


class BackendBroken(PluginError, ImportError, code="E103"):
    """The plugin raises when it is imported."""


class ContractMismatch(PluginError, code="E104"):
    """The plugin was written for a contract this core does not speak."""


class DuplicateName(PluginError, code="E105"):
    """Two distributions register the same name for the same role."""


class CapabilityError(PluginError, code="E106"):
    """The backend was asked for something its manifest does not claim."""


class ManifestError(PluginError, ValueError, code="E107"):
    """A manifest has a missing, unknown or malformed entry."""


class ConfigError(ArealError, ValueError, code="E200"):
    """The configuration cannot be used."""


class UnknownKey(ConfigError, code="E201"):
    """The configuration has a key that nothing reads."""


class WrongType(ConfigError, TypeError, code="E202"):
    """A configuration value has the wrong type or is out of its range."""


class PlanError(ConfigError, code="E203"):
    """Values that are each fine cannot go together."""


class ModelError(ConfigError, code="E204"):
    """The model folder is missing, or holds no model this role can use."""


class DatasetError(ConfigError, code="E205"):
    """The data set is missing, or a row lacks what the workflow needs."""


class RunFolderError(ConfigError, code="E206"):
    """The run folder belongs to another live run, or cannot be resumed."""


class LayoutError(ConfigError, code="E207"):
    """The parallel layout cannot be parsed, or does not fit the model or the machine."""


class RolloutError(ArealError, code="E300"):
    """Something went wrong between a prompt and its episode."""


class EpisodeFailed(RolloutError, code="E301"):
    """A workflow raised; the episode is neither rejected nor worth a reward of zero."""


class RewardFailed(RolloutError, code="E302"):
    """A reward function raised, hung, died or returned something that is not a finite number."""


class PromptTooLong(RolloutError, ValueError, code="E303"):
    """The prompt leaves no room for a single generated token."""


class GenerationFailed(RolloutError, code="E304", retryable=True):
    """An inference engine refused or lost a request."""


class NoReplica(RolloutError, code="E305"):
    """Every inference replica is out of service."""


class StalenessViolation(RolloutError, code="E306"):
    """An episode older than `max_staleness` was about to be trained on; a bug of the core."""


class WorkerError(ArealError, code="E400"):
    """A worker process, or the call made to it, failed."""


class WorkerDied(WorkerError, code="E401", retryable=True):
    """A worker process ended while it was needed."""


class WorkerTimeout(WorkerError, TimeoutError, code="E402"):
    """A worker did not answer within the deadline of the call."""


class RemoteError(WorkerError, code="E403"):
    """A call raised inside a worker; the remote traceback is in `why`."""


class ResourceError(WorkerError, code="E404"):
    """The machine has not enough devices, ports, shared memory or processes."""


class AuthenticationError(WorkerError, code="E405"):
    """A peer did not present this run's key."""


class CodecError(WorkerError, ValueError, code="E406"):
    """A message holds a type that does not travel, or bytes that do not decode."""


class WeightSyncError(ArealError, code="E500"):
    """A weight update did not happen; the fleet still serves the previous version."""


class CoverageError(WeightSyncError, code="E501"):
    """A tensor has no destination, or a destination got no tensor."""


class FingerprintMismatch(WeightSyncError, code="E502"):
    """The bytes received differ from the bytes sent."""


class VersionRegressed(WeightSyncError, ValueError, code="E503"):
    """Weights not newer than those already serving were offered."""


class TrainError(ArealError, code="E600"):
    """A train engine could not do what it was asked."""


class BatchError(TrainError, ValueError, code="E601"):
    """A batch lacks a column, or holds a sequence the engine cannot take."""


class CheckpointError(TrainError, code="E602"):
    """A checkpoint is missing, incomplete, or belongs to another model."""


class StorageError(ArealError, OSError, code="E700"):
    """A file could not be written: disk full, read-only, or no permission."""


@contextmanager
def storage_errors(path: Path, *others: type[Exception]) -> Iterator[None]:
    """Turn what the operating system says of a write to `path` into a StorageError, and `others` likewise."""
    kinds: tuple[type[Exception], ...] = (OSError, *others)
    try:
        yield
    except StorageError:
        raise
    except kinds as error:
        raise StorageError(
            f"cannot write {path}",
            why=str(error),
            fix="free space on that disk, or choose another run folder; a folder written before is untouched",
        ) from error
