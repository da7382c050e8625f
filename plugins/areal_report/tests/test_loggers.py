"""The optional loggers call their packages the way these want to be called, and only when asked."""

from __future__ import annotations

import importlib
import subprocess
import sys
import types
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from areal_core.observe.metrics import MetricsLogger
from areal_report.loggers import tracked
from areal_report.loggers.prometheus import PrometheusConfig, PrometheusLogger
from areal_report.loggers.tensorboard import TensorBoardConfig, TensorBoardLogger
from areal_report.loggers.tracked import (
    SwanlabLogger,
    TrackedConfig,
    TrackedLogger,
    TrackioLogger,
    WandbLogger,
)
from areal_report.manifest import PROMETHEUS, SWANLAB, TENSORBOARD, TRACKIO, WANDB

Calls = list[tuple[str, Any]]


def recorder(calls: Calls, name: str) -> Callable[..., str]:
    def call(*args: Any, **kwargs: Any) -> str:
        calls.append((name, (args, kwargs)))
        return name

    return call


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Calls]:
    """Put a package that records its calls in the place of a real one."""

    def install(name: str) -> Calls:
        calls: Calls = []
        module = types.ModuleType(name)
        for function in ("init", "log", "finish", "Table"):
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


@pytest.mark.parametrize(
    ("kind", "id_argument", "resumes"),
    [
        (TrackioLogger, "name", ["never", "allow", "allow", "never"]),
        (WandbLogger, "id", [None, "allow", "allow", None]),
        (SwanlabLogger, "id", ["allow"] * 4),
    ],
)
def test_a_run_goes_on_with_what_its_folder_was_known_by(
    package: Callable[[str], Calls],
    tmp_path: Path,
    kind: type[TrackedLogger],
    id_argument: str,
    resumes: list[str | None],
) -> None:
    """Also if it begins at step 0 again, for want of a checkpoint; a run in a new folder is another one."""
    calls = package(kind.package)
    (tmp_path / "new").mkdir()
    for run, folder, first_step in (("run", "", 0), ("run", "", 40), ("renamed", "", 0), ("another", "new", 0)):
        kind(TrackedConfig()).start(run, tmp_path / folder, {}, first_step)

    arguments = [given for _, (_, given) in calls]
    first, *same, other = [given[id_argument] for given in arguments]
    assert same == [first, first] and other != first
    assert [given["resume"] for given in arguments] == resumes
    assert (tmp_path / f"{kind.package}-id").read_text().strip() == first


def test_swanlab_gets_no_id_on_this_machine_alone(package: Callable[[str], Calls], tmp_path: Path) -> None:
    """Some of its versions refuse one unless a server keeps the run."""
    calls = package("swanlab")

    SwanlabLogger(TrackedConfig(options={"mode": "local"})).start("run", tmp_path, {}, 0)

    assert not {"id", "resume"} & calls[0][1][1].keys() and not (tmp_path / "swanlab-id").exists()


@pytest.mark.parametrize(("kind", "argument"), [(TrackioLogger, "name"), (WandbLogger, "id"), (SwanlabLogger, "id")])
def test_an_id_of_the_users_own_comes_first(
    package: Callable[[str], Calls], tmp_path: Path, kind: type[TrackedLogger], argument: str
) -> None:
    """What stands in `options` is handed over as it is, and kept."""
    calls = package(kind.package)
    kind(TrackedConfig()).start("run", tmp_path, {}, 0)

    kind(TrackedConfig(options={argument: "mine"})).start("run", tmp_path, {}, 0)

    assert calls[-1][1][1][argument] == "mine" == (tmp_path / f"{kind.package}-id").read_text().strip()


@pytest.mark.parametrize("kind", [TrackioLogger, WandbLogger])
def test_samples_of_every_step_are_sent_as_a_table(
    package: Callable[[str], Calls], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: type[TrackedLogger]
) -> None:
    """With the step after theirs, the last ones at the end; without the option no text leaves."""
    calls = package(kind.package)
    asked: list[tuple[Path, int, int]] = []

    def samples(folder: Path, step: int, number: int) -> list[tuple[object, ...]]:
        asked.append((folder, step, number))
        return [(step, "train/0/1", 1.0, "2 + 2", "4", "stop", 2)]

    monkeypatch.setattr(tracked, "extension", {"samples": samples}.get)
    for wanted in (0, 4):
        logger = kind(TrackedConfig(samples=wanted))
        logger.start("run", tmp_path, {}, 0)
        logger.log(1, {"reward": 0.5})
        logger.log(2, {"reward": 0.6})
        logger.close()

    sent = [(sorted(call[0][0]), call[1]["step"]) for name, call in calls if name == "log"]
    assert sent == [
        *[(["reward"], 1), (["reward"], 2)],
        *[(["reward"], 1), (["reward", "samples"], 2), (["samples"], 2)],
    ]
    assert asked == [(tmp_path, 1, 4), (tmp_path, 2, 4)]


def test_prometheus_reads_the_last_step(tmp_path: Path) -> None:
    """On this machine alone, under names it allows; a number that was not measured again is gone."""
    logger = PrometheusLogger(PrometheusConfig(port=0))
    assert isinstance(logger, MetricsLogger)

    logger.start("quick", tmp_path, {}, 0)
    address = (tmp_path / "prometheus").read_text().strip()
    logger.log(1, {"train/entropy": 0.5, "eval_reward": 0.25})
    logger.log(2, {"train/entropy": 0.75})
    with urllib.request.urlopen(address, timeout=30) as answer:
        text = answer.read().decode()
    logger.close()
    logger.close()

    assert 'areal_train_entropy{run="quick"} 0.75' in text and 'areal_step{run="quick"} 2.0' in text
    assert "eval_reward" not in text
    assert address.startswith("http://127.0.0.1:")
    with pytest.raises(OSError):
        urllib.request.urlopen(address, timeout=30)


def test_a_port_that_is_taken_costs_the_logger_and_not_the_run(tmp_path: Path) -> None:
    """It says so by raising at the start, which the stream of metrics writes down."""
    first, second = PrometheusLogger(PrometheusConfig(port=0)), tmp_path / "second"
    second.mkdir()
    first.start("run", tmp_path, {}, 0)
    port = int((tmp_path / "prometheus").read_text().split(":")[-1].split("/")[0])

    with pytest.raises(OSError):
        PrometheusLogger(PrometheusConfig(port=port)).start("run", second, {}, 0)
    first.close()


def test_a_logger_that_never_started_closes_quietly() -> None:
    """A run that fails before its first step closes everything it made."""
    TrackioLogger(TrackedConfig()).close()
    TensorBoardLogger(TensorBoardConfig()).close()
    PrometheusLogger(PrometheusConfig()).close()


def test_tensorboard_hides_steps_that_are_made_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Scalars by name and step; what the attempt before wrote beyond its checkpoint is purged, all if it has none."""
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

    logger.start("run", tmp_path, {}, 0)
    (tmp_path / "tensorboard").mkdir()
    (tmp_path / "tensorboard" / "events.out.tfevents.1760000000.host.1.0").touch()
    logger.start("run", tmp_path, {}, 40)
    logger.log(41, {"reward": 0.5})
    logger.close()
    logger.start("run", tmp_path, {}, 0)

    where = (str(tmp_path / "tensorboard"),)
    assert calls == [
        ("init", (where, {"purge_step": None, "flush_secs": 30})),
        ("init", (where, {"purge_step": 41, "flush_secs": 30})),
        ("add_scalar", (("reward", 0.5, 41), {})),
        ("close", ((), {})),
        ("init", (where, {"purge_step": 1, "flush_secs": 30})),
    ]


@pytest.mark.parametrize(
    "manifest", [TENSORBOARD, PROMETHEUS, TRACKIO, WANDB, SWANLAB], ids=lambda manifest: manifest.name
)
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
