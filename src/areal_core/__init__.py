"""areal: a thin core for asynchronous reinforcement learning of language models.

    from areal_core import dataset, load_config, reward, train

What a user's own file needs is here: the contract (six protocols and their data), decorators, claims, plans and runs.
Each name is imported when it is first used, so importing this package loads neither torch nor an engine.
Backend authors may also rely on `areal_core.contract`, `.plugins`, `.worker` and `.testing`; everything else is
private by convention and changes without notice.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_ELSEWHERE = {
    "contract.batch": ("Batch",),
    "contract.errors": (
        "ArealError",
        "CapabilityError",
        "ConfigError",
        "DatasetError",
        "PluginError",
        "RewardFailed",
        "RolloutError",
        "TrainError",
        "WeightSyncError",
        "WorkerError",
    ),
    "contract.trajectory": ("TrajectoryBuilder",),
    "contract.workflow": ("require_ok",),
    "plugins.claims": ("Claim", "full", "not_yet", "unsupported", "when"),
    "plugins.manifest": ("Manifest",),
    "plugins.marks": ("backend", "dataset", "device", "objective", "reward", "workflow"),
    "plugins.registry": ("Registry", "default_registry"),
    "config.schema": ("RunConfig",),
    "config.load": ("load_config",),
    "config.plan": ("Plan", "make_plan"),
    "cli.train": ("train",),
}
"""Module -> what is public of it, beside everything in `areal_core.contract.__all__`."""

if TYPE_CHECKING:  # the same names once more, for type checkers and editors
    from areal_core.cli.train import train as train
    from areal_core.config.load import load_config as load_config
    from areal_core.config.plan import Plan as Plan
    from areal_core.config.plan import make_plan as make_plan
    from areal_core.config.schema import RunConfig as RunConfig
    from areal_core.contract import *  # noqa: F403
    from areal_core.contract.batch import Batch as Batch
    from areal_core.contract.errors import ArealError as ArealError
    from areal_core.contract.errors import CapabilityError as CapabilityError
    from areal_core.contract.errors import ConfigError as ConfigError
    from areal_core.contract.errors import DatasetError as DatasetError
    from areal_core.contract.errors import PluginError as PluginError
    from areal_core.contract.errors import RewardFailed as RewardFailed
    from areal_core.contract.errors import RolloutError as RolloutError
    from areal_core.contract.errors import TrainError as TrainError
    from areal_core.contract.errors import WeightSyncError as WeightSyncError
    from areal_core.contract.errors import WorkerError as WorkerError
    from areal_core.contract.trajectory import TrajectoryBuilder as TrajectoryBuilder
    from areal_core.contract.workflow import require_ok as require_ok
    from areal_core.plugins.claims import Claim as Claim
    from areal_core.plugins.claims import full as full
    from areal_core.plugins.claims import not_yet as not_yet
    from areal_core.plugins.claims import unsupported as unsupported
    from areal_core.plugins.claims import when as when
    from areal_core.plugins.manifest import Manifest as Manifest
    from areal_core.plugins.marks import backend as backend
    from areal_core.plugins.marks import dataset as dataset
    from areal_core.plugins.marks import device as device
    from areal_core.plugins.marks import objective as objective
    from areal_core.plugins.marks import reward as reward
    from areal_core.plugins.marks import workflow as workflow
    from areal_core.plugins.registry import Registry as Registry
    from areal_core.plugins.registry import default_registry as default_registry
else:  # hidden from type checkers, which would take every name for granted

    def __getattr__(name: str) -> Any:  # Any: whatever the name stands for
        """Import a public name when it is first used."""
        module = next((module for module, names in _ELSEWHERE.items() if name in names), "contract")
        if name.startswith("_") or (module == "contract" and name not in import_module("areal_core.contract").__all__):
            raise AttributeError(f"areal_core has no attribute {name!r}; dir(areal_core) lists the public names")
        found = getattr(import_module(f"areal_core.{module}"), name)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    """Return the public names, sorted."""
    return sorted({"__version__", *import_module("areal_core.contract").__all__, *sum(_ELSEWHERE.values(), ())})
