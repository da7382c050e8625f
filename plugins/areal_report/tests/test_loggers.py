"""The optional loggers call their packages the way these want to be called, and only when asked."""

from __future__ import annotations

import importlib
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from areal_core.observe.metrics import MetricsLogger
from areal_report.loggers.tensorboard import TensorBoardConfig, TensorBoardLogger
from areal_report.loggers.tracked import (
    SwanlabLogger,
    TrackedConfig,
    TrackedLogger,
    TrackioLogger,
    WandbLogger,
)
from areal_report.manifest import SWANLAB, TENSORBOARD, TRACKIO, WANDB

Calls = list[tuple[str, Any]]


def recorder(calls: Calls, name: str) -> Callable[..., None]:
    def call(*args: Any, **kwargs: Any) -> None:
        calls.append((name, (args, kwargs)))

    return call


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Calls]:
    """Put a package that records its calls in the place of a real one."""

    def install(name: str) -> Calls:
        calls: Calls = []
        module = types.ModuleType(name)
        for function in ("init", "log", "finish"):
            setattr(module, function, recorder(calls, function))
        monkeypatch.setitem(sys.modules, name, module)
        return calls

    return install


@pytest.mark.parametrize("kind", [TrackioLogger, WandbLogger, SwanlabLogger])
def test_tracking_packages_get_init_log_and_finish(
    package: Callable[[str], Calls], tmp_path: Path, kind: type[TrackedLogger]
) -> None:
    """Project, name and configuration at the start, one call per step, one finish however often closed."""
    calls = package(kind.package)
    logger = kind(TrackedConfig(project="p", options={"mode": "offline"}))
    assert isinstance(logger, MetricsLogger)

    logger.start("quickstart", tmp_path, {"seed": 1}, 0)
    logger.log(3, {"reward": 0.5})
    logger.close()
    logger.close()

    assert [name for name, _ in calls] == ["init", "log", "finish"]
    arguments = calls[0][1][1]
    assert {"project": "p", "config": {"seed": 1}, "mode": "offline"}.items() <= arguments.items()
    assert "quickstart" in (arguments.get("name"), arguments.get("experiment_name"))
    assert calls[1][1] == (({"reward": 0.5},), {"step": 3})


def test_a_logger_that_never_started_closes_quietly() -> None:
    """A run that fails before its first step closes everything it made."""
    TrackioLogger(TrackedConfig()).close()
    TensorBoardLogger(TensorBoardConfig()).close()


def test_tensorboard_hides_steps_that_are_made_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Scalars by name and step; a resume purges what the crashed attempt wrote beyond it."""
    calls: Calls = []

    class Writer:
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            recorder(calls, "init")(*args, **kwargs)

        add_scalar = staticmethod(recorder(calls, "add_scalar"))
        close = staticmethod(recorder(calls, "close"))

    module = types.ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = Writer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    logger = TensorBoardLogger(TensorBoardConfig())
    assert isinstance(logger, MetricsLogger)

    logger.start("run", tmp_path, {}, 40)
    logger.log(41, {"reward": 0.5})
    logger.close()

    assert calls == [
        ("init", ((str(tmp_path / "tensorboard"),), {"purge_step": 41, "flush_secs": 30})),
        ("add_scalar", (("reward", 0.5, 41), {})),
        ("close", ((), {})),
    ]


@pytest.mark.parametrize("manifest", [TENSORBOARD, TRACKIO, WANDB, SWANLAB], ids=lambda manifest: manifest.name)
def test_manifests_name_things_that_exist(manifest: Any) -> None:
    """Factory and config can be imported without the package itself, and fit together."""
    module, _, name = manifest.factory.partition(":")
    config_module, _, config_name = manifest.config.partition(":")

    factory = getattr(importlib.import_module(module), name)
    config = getattr(importlib.import_module(config_module), config_name)

    assert isinstance(factory(config()), MetricsLogger)


def test_watching_a_run_imports_nothing_heavy() -> None:
    """Events, metrics, progress and report need neither torch nor matplotlib until a picture is drawn."""
    program = (
        "import sys, areal_core.observe.metrics, areal_report.progress, areal_report.report\n"
        "import areal_report.manifest, areal_report.loggers.tracked, areal_local.transports.manifest\n"
        "import areal_local.transports.config\n"
        "print([name for name in ('torch', 'matplotlib', 'wandb', 'trackio', 'numpy') if name in sys.modules])"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)

    assert done.stdout.strip() == "[]", done.stderr
