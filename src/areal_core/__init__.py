"""areal: a thin core for asynchronous reinforcement learning of language models.

    import areal_core as areal

    areal.Trainer("path/of/a/model", reward=right, data=rows, steps=20).train()

What a user's own file needs is here: the contract (six protocols and their data), decorators, claims, plans and runs.
Each name is imported when it is first used, so importing this package loads neither torch nor an engine.
Backend authors may also rely on `areal_core.contract`, `.plugins`, `.worker` and `.testing`; everything else is
private by convention and changes without notice.
"""

from importlib import import_module
from typing import Any

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
    "plugins.marks": ("accept", "backend", "dataset", "device", "estimator", "objective", "reward", "workflow"),
    "plugins.registry": ("Registry", "default_registry"),
    "config.schema": ("RunConfig",),
    "config.load": ("load_config",),
    "config.plan": ("Plan", "make_plan"),
    "cli.train": ("train",),
}
"""Module -> what is public of it, beside all of `areal_core.contract.__all__`; `__init__.pyi` tells type checkers."""


def __getattr__(name: str) -> Any:  # Any: whatever the name stands for
    """Import a public name when it is first used."""
    if name == "Trainer":  # of another package: nothing here depends on it
        return import_module("areal_core.plugins.extensions").need("trainer", "areal_core.Trainer")
    module = next((module for module, names in _ELSEWHERE.items() if name in names), "contract")
    if name.startswith("_") or (module == "contract" and name not in import_module("areal_core.contract").__all__):
        raise AttributeError(f"areal_core has no attribute {name!r}; dir(areal_core) lists the public names")
    found = getattr(import_module(f"areal_core.{module}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """Return the public names, sorted."""
    return sorted(
        {"Trainer", "__version__", *import_module("areal_core.contract").__all__, *sum(_ELSEWHERE.values(), ())}
    )
