"""`areal quickstart`: a real asynchronous run on this machine, with nothing to download.

Knows: the presets and where their starting models come from.
Does not know: anything a normal run does not do; the run it starts is `areal train` on a preset.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console
from rich.progress import Progress

from areal_core.cli.train import train as start
from areal_core.config.load import load_config
from areal_core.contract.errors import ConfigError
from areal_core.plugins.registry import Registry, default_registry

PRESETS = ("spell", "long_spell", "smollm2", "spell_again", "sums")


def quickstart(
    *overrides: str,
    model: Annotated[str, Parameter(help=f"What to train: {', '.join(PRESETS)}, or a model folder.")] = "spell",
    out: Annotated[Path, Parameter(help="The run folder; an earlier run in it is moved aside.")] = Path(
        "runs/quickstart"
    ),
    seed: int | None = None,
    steps: int | None = None,
    max_staleness: int | None = None,
    train: Annotated[str | None, Parameter(help="Training backend, for example fsdp:d2.")] = None,
    infer: Annotated[str | None, Parameter(help="Inference backend, for example reference:d2.")] = None,
    device: Annotated[str, Parameter(help="What to run on: cpu, cuda, ..., or auto.")] = "cpu",
    dry_run: bool = False,
    quiet: Annotated[bool, Parameter(help="Print nothing but errors.")] = False,
) -> int:
    """Train a small model on this machine, now: asynchronous GRPO with a real FSDP trainer.

    The default teaches a 101k-parameter model to spell words backward; about a minute on two cores.

    Parameters
    ----------
    overrides:
        Values that replace those of the run, as of `areal train`: algorithm.preset=rloo rollout.group_size=16
    """
    for override in overrides:
        if "=" not in override:
            raise ConfigError(
                f"override {override!r} is not key=value",
                fix="for example rollout.group_size=16; --model names a model",
            )
    preset = model if model in PRESETS else "spell"
    console = Console(quiet=quiet)
    registry = default_registry()
    path = _model_path(model, registry, console)
    given = [f"model.path={path}", f"out={out}", f"device={device}"]
    choices: Mapping[str, Any] = {  # Any: whatever the command line gave
        "seed": seed,
        "steps": steps,
        "rollout.max_staleness": max_staleness,
        "actor.backend": train,
        "rollout.backend": infer,
    }
    given += [f"{key}={value}" for key, value in choices.items() if value is not None]
    run = load_config(preset_path(preset), [*given, *overrides])
    return start(run, registry, dry_run=dry_run, archive=True, quiet=quiet)


def preset_path(name: str) -> Path:
    """Return the yaml file of a preset."""
    return Path(str(files("areal_tasks.quickstart") / "presets" / f"{name}.yaml"))


def _model_path(model: str, registry: Registry, console: Console) -> Path:
    if model == "smollm2":
        from areal_tasks.smollm2 import default_cache, smollm2

        return smollm2(default_cache(), lambda message: console.print(message, highlight=False))
    if model in PRESETS:
        return _warm_start(model, registry, console)
    if not Path(model).is_dir():
        raise ConfigError(
            f"--model {model!r} is neither a preset nor a folder",
            why=f"presets are {', '.join(PRESETS)}",
            fix="areal quickstart --model smollm2",
        )
    return Path(model)


def _warm_start(task: str, registry: Registry, console: Console) -> Path:
    from areal_tasks.quickstart.warm_start import RECIPES, cached_model, warm_start

    recipe = RECIPES[task]
    cached = cached_model(recipe)
    if cached is not None:
        return cached
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task("fine-tuning the starting model on sloppy demonstrations, once", total=recipe.steps)
        return asyncio.run(
            warm_start(recipe, registry, lambda step, _total, _loss: progress.update(bar, completed=step))
        )
