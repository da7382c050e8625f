"""The model card of a run: what was trained, on what, how, and how it went.

Knows: a run folder's files and the front matter that the hub reads.
Does not know: how anything is uploaded (`push`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from attrs import frozen

from areal_core import __version__
from areal_core.config.load import load_config
from areal_core.config.schema import RunConfig
from areal_core.contract.errors import RunFolderError
from areal_core.loop.run_folder import RunFolder
from areal_hub.names import hub_name

PICTURE = "reward.png"


@frozen(kw_only=True)
class Trained:
    """What a run has to show: its newest checkpoint and its records."""

    config: RunConfig
    config_text: str
    model: Path
    step: int
    records: tuple[Mapping[str, Any], ...]  # Any: as in `metrics.jsonl`
    picture: Path | None

    @classmethod
    def of(cls, folder: Path) -> Trained:
        """Read a run folder.

        Raises:
            RunFolderError: it holds no run, or no trained model.
        """
        files = RunFolder(folder)
        latest = files.latest()
        if latest is None or not (latest / "model").is_dir():
            raise RunFolderError(
                f"run folder {files.root} holds no trained model",
                why="it has no complete checkpoint" if files.config.is_file() else "it holds no run",
                fix="name the folder of a run that saved a checkpoint",
            )
        lines = files.metrics.read_text(encoding="utf-8").splitlines() if files.metrics.is_file() else []
        step = int(latest.name.rpartition("-")[2])
        records = [json.loads(line) for line in lines if line.endswith("}")]
        return cls(
            config=load_config(files.config),
            config_text=files.config.read_text(encoding="utf-8"),
            model=latest / "model",
            step=step,
            records=tuple(record for record in records if int(record["step"]) <= step),
            picture=files.picture if files.picture.is_file() else None,
        )


def card(trained: Trained, repo: str) -> str:
    """Return README.md of the repository."""
    config = trained.config
    title = repo.rpartition("/")[2]
    facts = {
        "kind": config.kind,
        "steps": f"{trained.step} of {config.steps}",
        "starting model": config.actor.path or config.model.path,
        "data": _data(config),
        "reward": config.rollout.reward.name,
        "objective": config.algorithm.objective.name,
        "trainer": config.actor.backend,
        "inference": config.rollout.backend,
        "seed": config.seed,
        **_rewards(trained.records),
    }
    rows = "\n".join(f"| {name} | {_cell(value)} |" for name, value in facts.items() if value not in ("", None))
    picture = f"\n![Reward over the steps]({PICTURE})\n" if trained.picture else ""
    return (
        f"---\n{yaml.safe_dump(_front(config), sort_keys=False)}---\n\n# {title}\n\n"
        f"Trained with areal {__version__}.\n\n| | |\n|---|---|\n{rows}\n{picture}\n"
        f"## Configuration\n\n```yaml\n{trained.config_text.rstrip()}\n```\n"
    )


def _front(config: RunConfig) -> dict[str, Any]:  # Any: yaml
    """Return the metadata that the hub reads. A starting model of this machine is nobody's business."""
    start = hub_name(config.actor.path or config.model.path)
    data = hub_name(str(config.data.options.get("path", ""))) if config.data.name == "hub" else None
    return {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["areal", "reinforcement-learning" if config.kind == "rl" else config.kind.replace("_", "-")],
        **({"base_model": start.repo} if start else {}),
        **({"datasets": [data.repo]} if data else {}),
    }


def _data(config: RunConfig) -> str:
    options = config.data.options
    told = options.get("path") if config.data.name == "hub" else options.get("task")
    return (
        f"{config.data.name} {told}"
        if (isinstance(told, str) and hub_name(told)) or (told and "task" in options)
        else (config.data.name)
    )


def _rewards(records: tuple[Mapping[str, Any], ...]) -> dict[str, str]:  # Any: as in `metrics.jsonl`
    found = [record["reward"] for record in records if isinstance(record.get("reward"), float | int)]
    if not found:
        return {}
    tenth = max(1, len(found) // 10)
    first, last = sum(found[:tenth]) / tenth, sum(found[-tenth:]) / tenth
    return {f"mean reward of the first and the last {tenth} steps": f"{first:.4g}, {last:.4g}"}


def _cell(value: object) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")
