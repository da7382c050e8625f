"""Resume points: everything a run is, at one version, written all at once.

    checkpoints/step-000040/
      loop.json            version, which prompts are trained, totals
      actor/ critic/       exact engine state
      model/               the policy in Hugging Face format

Knows: what belongs together. The trained prompts and the trained weights are one fact:
either both are in a checkpoint or neither, so no prompt is trained twice or lost.
Does not know: how engines write their state.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import frozen

from areal_core.contract.errors import CheckpointError
from areal_core.loop.learner import Learner
from areal_core.loop.run_folder import RunFolder

_FORMAT = 1


@frozen(kw_only=True)
class Progress:
    """Where a run stands between two steps. `tasks` is the task source's own state."""

    version: int
    tasks: Mapping[str, Any]  # Any: plain data
    totals: Mapping[str, float]


async def save_checkpoint(folder: RunFolder, learner: Learner, progress: Progress, *, keep: int) -> Path:
    """Write a checkpoint of the current version; complete or absent.

    Raises:
        StorageError: nothing of it is left behind.
    """
    with folder.new_checkpoint(progress.version, keep) as path:
        await learner.actor.save_state(path / "actor")
        if learner.critic is not None:
            await learner.critic.save_state(path / "critic")
        await learner.actor.save_weights(path / "model")
        record = {
            "format": _FORMAT,
            "version": progress.version,
            "tasks": dict(progress.tasks),
            "totals": dict(progress.totals),
            "roles": [group.role for group in (learner.actor, learner.critic) if group is not None],
        }
        _write_json(path / "loop.json", record)
    return folder.root / "checkpoints" / path.name.removesuffix(".partial")


def read_progress(path: Path) -> Progress:
    """Read where a checkpoint stands.

    Raises:
        CheckpointError: it is not one of ours, or of another format.
    """
    try:
        record = json.loads((path / "loop.json").read_text())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"checkpoint {path} cannot be read", why=str(error), fix="resume from another") from None
    if record.get("format") != _FORMAT:
        raise CheckpointError(
            f"checkpoint {path} has format {record.get('format')}", why=f"this areal reads format {_FORMAT}"
        )
    return Progress(version=record["version"], tasks=record["tasks"], totals=record["totals"])


async def restore(path: Path, learner: Learner, progress: Progress) -> None:
    """Bring every training role back to a checkpoint."""
    await learner.actor.load_state(path / "actor")
    await learner.actor.set_version(progress.version)
    if learner.critic is not None:
        if not (path / "critic").exists():
            raise CheckpointError(f"checkpoint {path} has no critic", fix="remove `critic:` or start a new run")
        await learner.critic.load_state(path / "critic")


def _write_json(path: Path, record: Mapping[str, Any]) -> None:
    with path.open("w") as stream:
        json.dump(record, stream)
        stream.flush()
        os.fsync(stream.fileno())
