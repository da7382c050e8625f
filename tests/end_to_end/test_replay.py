"""A replay trains on the store of a run and gives its bits; synchronous runs that are asked to give them twice."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load, save

from areal_core.cli.main import main
from areal_core.config.load import load_config
from areal_core.config.plan import make_plan
from areal_core.contract.errors import CapabilityError, ConfigError, StorageError
from areal_core.loop.launch import _job
from areal_core.observe.jsonl import read_lines
from areal_core.plugins.registry import default_registry
from areal_episodes.columns import checksum
from areal_episodes.replay import replay
from areal_episodes.replaying.batches import read_step
from areal_episodes.replaying.comparison import first_difference
from areal_torch.device import open_device

from .one_process import FILE, resume_here, settle_here, train_here

pytest.importorskip("areal_reference")
pytestmark = pytest.mark.slow

STEPS = 4
BLOCKED = """
import asyncio, os, signal, sys
from areal_core.cli.main import main
from areal_episodes import replay_command

async def blocked(*_, **__):
    for _ in range(3):
        os.kill(os.getpid(), signal.SIGINT)
    print("lives on")

replay_command.execute = blocked
sys.exit(main(["replay", *sys.argv[1:], "--quiet"]))
"""


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep every worker in this process."""
    settle_here(monkeypatch)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Iterator[Path]:
    """An asynchronous run with a critic, a reference model and recomputed log-probs: everything a step may compute."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    with pytest.MonkeyPatch.context() as patch:
        settle_here(patch)
        train_here(
            folder,
            model,
            "critic.backend=reference:d1",
            "reference.backend=reference:d1",
            "algorithm.proximal=recompute",
            "algorithm.advantages.kl.coefficient=0.1",
            "algorithm.minibatches=2",
        )
    yield folder


def test_a_replay_gives_the_bits_of_an_asynchronous_run(run: Path, tmp_path: Path) -> None:
    """Every loss, gradient norm and weight of every step, from the starting weights and from a checkpoint."""
    whole = replay(run, out=tmp_path / "whole")
    part = replay(run, from_step=3, out=tmp_path / "part")

    assert (whole.finished, whole.compared, whole.divergence) == (True, STEPS, None)
    assert (part.finished, part.compared, part.divergence) == (True, 2, None), "3 begins at the checkpoint of step 2"
    records = list(read_lines(run / "metrics.jsonl"))
    assert len({record["weights"] for record in records}) == STEPS, "weights that never change prove nothing"
    assert [record["weights"] for record in read_lines(tmp_path / "part" / "metrics.jsonl")] == [
        record["weights"] for record in records[2:]
    ]
    assert (tmp_path / "whole" / "report.html").exists()


def test_one_changed_column_is_named_with_its_step(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command ends with 1 and says step, metric and both values."""
    changed = _copy(run, tmp_path / "changed")
    _change_logprobs(changed, step=3)

    code = main(["replay", str(changed)])
    divergence = replay(changed, out=tmp_path / "again").divergence

    assert divergence is not None and divergence.step == 3
    assert divergence.metric.startswith("train/") and divergence.run != divergence.replay
    assert code == 1
    assert f"the first difference: {divergence}" in capsys.readouterr().out


def test_with_overrides_a_replay_is_an_experiment(run: Path, tmp_path: Path) -> None:
    """Its numbers are its own, and so is its folder; what would change nothing is refused."""
    assert main(["replay", str(run), "actor.optimizer.lr=1e-4", "--out", str(tmp_path / "slow")]) == 0

    theirs, ours = (list(read_lines(folder / "metrics.jsonl")) for folder in (run, tmp_path / "slow"))
    difference = first_difference(theirs[1], ours[1])
    assert [record["reward"] for record in ours] == [record["reward"] for record in theirs]
    assert ours[0]["lr"] < theirs[0]["lr"] / 10 and difference is not None
    for override in ("rollout.group_size=4", "steps=2"):
        with pytest.raises(ConfigError):
            replay(run, [override])


def test_the_third_ctrl_c_ends_a_replay_at_once(run: Path) -> None:
    """As it ends `areal train`, also while something holds the event loop; with --quiet nothing is told."""
    done = subprocess.run([sys.executable, "-c", BLOCKED, run], capture_output=True, text=True, check=False)

    assert (done.stdout, done.returncode) == ("", 130), done.stderr


def test_steps_that_are_not_whole_are_refused_by_name(run: Path, tmp_path: Path) -> None:
    """With the range that is, and the checkpoints one may begin at."""
    short = _copy(run, tmp_path / "short")
    with sqlite3.connect(short / "episodes.sqlite") as store:
        store.execute("DELETE FROM episodes WHERE step = 1")

    with pytest.raises(StorageError, match=r"steps 1 to 4 .*cannot be replayed") as refused:
        replay(short)

    assert "steps 2 to 4; checkpoints: 2, 4" in str(refused.value)
    assert replay(short, from_step=2).divergence is None


def test_a_replay_needs_no_inference_engine(run: Path, tmp_path: Path) -> None:
    """Nor a device for one: the engine of this run is in no environment of this machine."""
    pytest.importorskip("areal_vllm")
    elsewhere = _copy(run, tmp_path / "elsewhere")
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["rollout"] |= {"backend": "vllm:d64", "options": {}, "python": "/no/such/python"}
    (elsewhere / "config.yaml").write_text(yaml.safe_dump(config))

    assert replay(elsewhere, from_step=2).compared == 2


def test_a_replay_can_go_on_with_generating(run: Path, tmp_path: Path) -> None:
    """Two steps at the learning rates of four, then two more with prompts that no replayed step was trained on."""
    folder = tmp_path / "half"
    assert replay(run, to_step=2, out=folder).compared == 2

    outcome = resume_here(folder, f"steps={STEPS}")

    replayed = {group.task.index for step in (1, 2) for group in read_step(run, step)}
    generated = {group.task.index for step in (3, 4) for group in read_step(folder, step)}
    assert outcome.finished and len(generated) == 4
    assert len({record["lr"] for record in read_lines(folder / "metrics.jsonl")}) == STEPS, "the rate is to fall"
    assert not replayed & generated


def test_a_synchronous_deterministic_run_gives_the_same_bits_on_any_load(tmp_path: Path, model: Path) -> None:
    """Beside a busy thread the requests of a step meet in other batches, and nothing differs."""
    settings = ("deterministic=true", "rollout.max_staleness=0")
    train_here(tmp_path / "idle", model, *settings)
    busy = threading.Event()
    thread = threading.Thread(target=_burn, args=(busy,))
    thread.start()
    try:
        train_here(tmp_path / "busy", model, *settings)
    finally:
        busy.set()
        thread.join()

    idle, loaded = (list(read_lines(tmp_path / name / "metrics.jsonl")) for name in ("idle", "busy"))
    assert len(idle) == len(loaded) == STEPS
    assert [first_difference(one, other) for one, other in zip(idle, loaded, strict=True)] == [None] * STEPS
    assert len({record["weights"] for record in idle}) == STEPS


@pytest.mark.timeout(900)
def test_processes_give_the_same_bits_on_any_load_and_in_a_replay(tmp_path: Path, model: Path) -> None:
    """Two FSDP ranks and a generator of their own, beside a process that keeps a core busy."""
    pytest.importorskip("areal_fsdp")
    areal = [sys.executable, "-m", "areal_core.cli.main"]
    letters = (f"imports=[{FILE.with_name('letters.py')}]", "rollout.reward.name=letters", "actor.backend=fsdp:d2")
    settings = (*letters, f"model.path={model}", "deterministic=true", "rollout.max_staleness=0")
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        subprocess.run([*areal, "train", str(FILE), *settings, f"out={tmp_path / 'busy'}"], check=True)
    finally:
        busy.kill()
        busy.wait()
    subprocess.run([*areal, "train", str(FILE), *settings, f"out={tmp_path / 'idle'}"], check=True)
    subprocess.run([*areal, "replay", str(tmp_path / "busy")], check=True)

    records = [list(read_lines(tmp_path / name / "metrics.jsonl")) for name in ("busy", "idle", "busy-replay")]
    assert [len(steps) for steps in records] == [STEPS] * 3
    assert [first_difference(*steps) for steps in zip(*records[:2], strict=True)] == [None] * STEPS
    assert len({tuple(step["weights"] for step in steps) for steps in records}) == 1
    assert len({step["weights"] for step in records[0]}) == STEPS


def test_deterministic_reaches_engines_and_libraries(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The generator is told, workers find the environment, torch refuses kernels that do not repeat."""
    registry = default_registry()
    config = load_config(FILE, [f"model.path={model}", "deterministic=true"])
    plan = make_plan(config, registry, {})
    found = _job(config, plan.role("actor")).env
    before = torch.are_deterministic_algorithms_enabled()
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    try:
        open_device("cpu", 0)
        enabled = torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(before)

    assert plan.role("rollout").options["deterministic"] is True
    assert any("areal replay" in warning for warning in plan.warnings), "the run is asynchronous"
    assert enabled and not before


def test_an_engine_that_cannot_repeat_is_refused(model: Path) -> None:
    """Before anything starts, with its manifest's reason."""
    pytest.importorskip("areal_vllm")
    config = load_config(FILE, [f"model.path={model}", "deterministic=true", "rollout.backend=vllm:d1"])

    with pytest.raises(CapabilityError, match="deterministic"):
        make_plan(config, default_registry(), {})


def _copy(run: Path, to: Path) -> Path:
    """Copy a run folder, its store with what is in the write-ahead log."""
    shutil.copytree(run, to, ignore=shutil.ignore_patterns("episodes.sqlite*"))
    with sqlite3.connect(run / "episodes.sqlite") as source, sqlite3.connect(to / "episodes.sqlite") as target:
        source.backup(target)
    return to


def _change_logprobs(folder: Path, *, step: int) -> None:
    """Make one log-prob of an episode of a step half a thousandth smaller."""
    (group, *_) = read_step(folder, step)
    with sqlite3.connect(folder / "episodes.sqlite") as store:
        number, first = store.execute(
            "SELECT chunk, first FROM episodes WHERE fate = 'trained' AND step = ? ORDER BY task_index, member", [step]
        ).fetchone()
        columns = load(store.execute("SELECT columns FROM chunks WHERE id = ?", [number]).fetchone()[0])
        start = int(columns["lengths"][:first].sum())
        generated = int(group.episodes[0].trajectories[0].loss_mask.nonzero()[0])
        columns["logprobs"][start + generated] -= 5e-4
        blob = save(columns)
        store.execute("UPDATE chunks SET columns = ?, checksum = ? WHERE id = ?", [blob, checksum(blob), number])


def _burn(until: threading.Event) -> None:
    """Keep a core busy."""
    numbers = torch.randn(64, 64)
    while not until.is_set():
        numbers = torch.tanh(numbers @ numbers)
