"""Is there an interpreter that runs the inference engine?

Knows: the three keys that decide it: rollout.options.url, rollout.options.python, rollout.python.
Does not know: where environments lie (the extension `environments`).
"""

from __future__ import annotations

from areal_core.config.schema import RolloutConfig
from areal_core.contract.errors import ConfigError
from areal_core.plugins.extensions import EngineEnvironments, need
from areal_core.plugins.manifest import Manifest


def check_environment(rollout: RolloutConfig, manifest: Manifest, device: str) -> list[str]:
    """Return warnings about the interpreter a run would start its servers with.

    Nothing is looked for if the engine runs in the trainer's environment, or its server runs already.

    Raises:
        EngineMissing: there is no such interpreter; the fix is the command that makes one.
    """
    if manifest.environment is None or rollout.options.get("url"):
        return []
    named = rollout.options.get("python") or None
    if named is not None and not isinstance(named, str):
        raise ConfigError(f"rollout.options.python={named!r} is not the path of an interpreter", fix="write a string")
    environments: EngineEnvironments = need("environments", f"inference backend {manifest.name!r}")
    return list(environments.find(manifest, device, python=named, worker=rollout.python).warnings)
