"""Whatever is wrong: one short error that names it, an exit code, no process, no half-written checkpoint."""

from __future__ import annotations

import asyncio
import json
import os
import re
import resource
import socket
import subprocess
import venv
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from attrs import frozen

from areal_core.cli.main import main
from areal_core.contract.errors import ResourceError
from areal_core.contract.scheduler import Job
from areal_core.contract.train import RankContext, TrainSpec
from areal_core.loop.run_folder import RunFolder
from areal_core.observe.jsonl import read_lines
from areal_core.plugins.registry import default_registry
from areal_local.scheduler.config import LocalConfig
from areal_local.scheduler.local_scheduler import LocalScheduler

from .live_run import LiveRun, command, live_run

pytest.importorskip("areal_reference")

USER_FILE = """
import os, time
from areal_core.plugins.marks import dataset, reward, workflow

@dataset("unreadable")
def unreadable():
    rows = [{"prompt": "ab>"}]
    return rows[1]

@dataset("words")
def words(prompt="ab>", rows=8):
    return [{"prompt": prompt} for _ in range(rows)]

@reward("raises")
def raises(prompt, completion, completion_ids, stop_reason, row):
    return row["answer"]

@reward("hangs")
def hangs(prompt, completion, completion_ids, stop_reason, row):
    time.sleep(1000)

@reward("nan")
def nan(prompt, completion, completion_ids, stop_reason, row):
    return float("nan")

@reward("exits")
def exits(prompt, completion, completion_ids, stop_reason, row):
    os._exit(3)

@reward("length")
def length(prompt, completion, completion_ids, stop_reason, row):
    return len(completion_ids)

@workflow("broken")
class Broken:
    async def arun_episode(self, engine, data):
        generation = await engine.generate(engine.tokenizer.encode(data["prompt"]))
        return generation.nothing

@dataset("unlucky")
def unlucky():
    import resource
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, 1))
    raise KeyError("the first thing that went wrong")
"""
RUN_YAML = """
imports: [user.py]
steps: 1000
data: {name: words}
rollout:
  prompts_per_step: 2
  group_size: 2
  sampling: {max_new_tokens: 8}
  reward: {name: length}
evaluation: {before: false, every_steps: 0}
"""


@frozen
class Refusal:
    """What a run that failed left: its exit code, its last message, and all it printed."""

    code: int
    error: str
    output: str


@pytest.fixture
def bench(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a user's file and a run's yaml; the current one, as a user would have it."""
    (tmp_path / "user.py").write_text(USER_FILE)
    (tmp_path / "run.yaml").write_text(f"out: run\nmodel: {{path: {model}}}\n{RUN_YAML}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@contextmanager
def started(bench: Path, *words: str) -> Iterator[LiveRun]:
    """Run `areal train run.yaml WORDS...`; it leaves no shared memory behind."""
    base = command(Path("run"), Path("model"))[:4]
    with live_run([*base, "run.yaml", *words], bench / "run") as run:
        yield run
    assert run.left_in_shared_memory() == []


def refused(run: LiveRun) -> Refusal:
    """Let the run fail, and check what holds for every failure."""
    refusal = judged(*run.watch(), run.folder)
    assert run.survivors() == []
    return refusal


def judged(code: int, output: str, folder: Path) -> Refusal:
    """Return what a failed run said, if it is said as every failure has to be."""
    (start,) = [match.start() for match in re.finditer(r"^[A-Z]\w+: .*\[AREAL-E\d+\]", output, re.MULTILINE)]
    error, _, hint = output[start:].rstrip().partition(". To continue: ")  # if there is something to go on with
    error, told = error.rpartition("\n")[::2] if hint else (error, "")

    assert code > 0 and "Traceback" not in output, output
    assert not hint or re.fullmatch(r"areal train --resume \S+", hint), hint
    assert not hint or re.fullmatch(r"step-\d+ is saved|no checkpoint yet, the run goes on from its beginning", told)
    assert "\n  why: " in error and "\n  fix: " in error, error
    assert len(error.splitlines()) <= 12, f"nobody reads this:\n{error}"
    assert list(folder.glob("**/*.partial")) + list(folder.glob("**/*.part")) == []
    return Refusal(code, error, output)


Here = Callable[..., Refusal]
"""Takes words of a command line."""


@pytest.fixture
def refused_here(bench: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Here]:
    """Yield a function that makes the command fail in this process, which saves it seconds, and starts no other."""

    def refused(*words: str) -> Refusal:
        before = psutil.Process().children(recursive=True)
        capsys.readouterr()
        code = main(["train", "run.yaml", *words])
        refusal = judged(code, "".join(capsys.readouterr()), bench / "run")

        assert psutil.Process().children(recursive=True) == before
        return refusal

    default_registry.cache_clear()  # it keeps the names of every user's file
    yield refused
    default_registry.cache_clear()


def recorded(run: LiveRun, refusal: Refusal) -> None:
    """The run had begun: its folder tells what ended it."""
    last = json.loads((run.folder / "events.jsonl").read_text().splitlines()[-1])

    assert run.processes, "no worker was ever seen"
    assert (last["kind"], last["status"], run.summary()["status"]) == ("run_ended", "failed", "failed")
    assert last["error"] == refusal.error
    assert refusal.error.splitlines()[0].partition(" [")[0] in (run.folder / "report.html").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["rollout.staleness=3"], r"UnknownKey: .*'rollout\.staleness'(.|\n)*mean 'rollout\.max_staleness'"),
        (["rollout.max_staleness=two"], r"WrongType: rollout\.max_staleness: got 'two' \(str\), wanted int"),
        (["model.path=nowhere"], r"ModelError: model folder 'nowhere' does not exist"),
        (["model.path=bert"], r"ModelError: model folder 'bert' holds no causal language model(.|\n)*BertForMaskedLM"),
        (["model.path=pickled"], r"ModelError: model folder 'pickled' has no \*\.safetensors"),
        (["model.path=torn"], r"ModelError: torn/model\.safetensors is not a complete safetensors file"),
        (["rollout.python=/nowhere/python"], r"PlanError: rollout\.python=/nowhere/python is not an interpreter"),
        (["imports=[raises.py]"], r"ConfigError: imports: .*raises\.py raises ZeroDivisionError(.|\n)*raises\.py:1"),
    ],
)
def test_a_mistake_in_the_configuration_ends_before_anything_starts(
    bench: Path, model: Path, refused_here: Here, words: list[str], said: str
) -> None:
    """Exit code 2, no process, no folder."""
    for name in ("bert", "pickled", "torn"):
        (bench / name).mkdir()
        (bench / name / "config.json").write_bytes((model / "config.json").read_bytes())
    (bench / "bert" / "config.json").write_text('{"architectures": ["BertForMaskedLM"], "model_type": "bert"}')
    (bench / "pickled" / "pytorch_model.bin").write_bytes(b"")
    (bench / "torn" / "model.safetensors").write_bytes((model / "model.safetensors").read_bytes()[:100_000])
    (bench / "raises.py").write_text("1 / 0\n")

    refusal = refused_here(*words)

    assert refusal.code == 2
    assert re.match(said, refusal.error), refusal.error
    assert not (bench / "run").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["data.name=jsonl", "data.options.path=no.jsonl"], r"DatasetError: cannot read the data set no\.jsonl"),
        (["data.name=jsonl", "data.options.path=column.jsonl"], r"DatasetError: column\.jsonl:2: column 'prompt' is"),
        (["data.name=jsonl", "data.options.path=torn.jsonl"], r"DatasetError: torn\.jsonl:2: the line is not JSON"),
        (
            ["data.name=unreadable"],
            r"DatasetError: data set 'unreadable' cannot be read(.|\n)*IndexError: (.|\n)*user\.py:8, in unreadable",
        ),
    ],
)
def test_a_data_set_that_cannot_be_read_ends_the_run_before_a_worker_starts(
    bench: Path, refused_here: Here, words: list[str], said: str
) -> None:
    """The file and the line are named; the folder tells, and is free for the next try."""
    (bench / "column.jsonl").write_text('{"prompt": "ab>"}\n{"question": "ab>"}\n')
    (bench / "torn.jsonl").write_text('{"prompt": "ab>"}\n{"prom\n')

    refusal = refused_here(*words)

    assert refusal.code == 2
    assert re.match(said, refusal.error), refusal.error
    assert json.loads((bench / "run" / "summary.json").read_text())["status"] == "failed"
    assert not (bench / "run" / "logs").exists()


@pytest.mark.slow
def test_the_first_error_comes_out_even_if_nothing_can_be_written_about_it(bench: Path) -> None:
    """From the moment the data set fails, no file of this process may grow: no event, no summary, no report."""
    with started(bench, "data.name=unlucky") as run:
        refusal = refused(run)

    assert refusal.code == 2
    assert refusal.error.startswith("DatasetError: data set 'unlucky' cannot be read")
    assert "KeyError: 'the first thing that went wrong'" in refusal.error
    assert not (run.folder / "summary.json").exists()


def test_a_folder_of_a_live_run_is_left_alone(bench: Path, refused_here: Here) -> None:
    """The second run is refused, and the first one's files stay as they are."""
    first = RunFolder(bench / "run")
    with first.held(resume=False):
        first.metrics.write_text("{}\n")
        refusal = refused_here()

        assert refusal.code == 2
        assert refusal.error.startswith(f"RunFolderError: run folder {first.root} is in use")
        assert sorted(path.name for path in first.root.iterdir()) == [".lock", "metrics.jsonl"]


def test_prompts_that_are_all_too_long_are_refused_before_a_worker_starts(bench: Path, refused_here: Here) -> None:
    """What the run would have failed with, an episode after another, is told by the number of prompts."""
    refusal = refused_here("data.options.prompt=" + "a" * 300)

    assert refusal.code == 2
    assert refusal.error.startswith("DatasetError: all 8 prompts of data are too long")
    assert "a sequence has at most 256 tokens" in refusal.error
    assert not any((bench / "run" / "logs").glob("*"))


def test_a_place_that_cannot_be_written_is_named(refused_here: Here) -> None:
    """Here because a file is in the way."""
    refusal = refused_here("out=user.py/run")

    assert refusal.code == 1
    assert re.match(r"StorageError: run folder .*user\.py/run cannot be written", refusal.error)


def test_a_port_taken_by_another_program_is_named(tmp_path: Path, model: Path) -> None:
    """Between its choice and its use a port may be lost; the rank that wanted it says so in few words."""
    pytest.importorskip("areal_fsdp")

    async def join(port: int) -> None:
        scheduler = LocalScheduler(LocalConfig(log_dir=str(tmp_path)))
        try:
            (worker,) = await scheduler.submit(Job(role="actor", engine_role="train", backend="fsdp", num_workers=1))
            address = f"tcp://127.0.0.1:{port}"
            rank = RankContext(rank=0, world_size=1, local_rank=0, device="cpu", init_method=address, timeout_s=30.0)
            await worker.call("start", TrainSpec(role="actor", model_path=str(model)), rank, timeout_s=240.0)
        finally:
            await scheduler.close()

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(
            ResourceError, match=f"rank 0 of 1 cannot reach the others at tcp://127.0.0.1:{port}"
        ) as error:
            asyncio.run(join(port))

    assert "address already in use" in error.value.why.lower()
    assert "start the run again" in error.value.fix


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["rollout.reward.name=raises"],
            [
                r"the reward function raised for episode train/0/\d",
                r"KeyError: 'answer'\n.*user\.py:16, in raises: return",
            ],
        ),
        (
            ["rollout.reward.name=hangs", "rollout.reward.timeout_s=0.5"],
            [
                "the reward function did not return",
                "reward 'hangs': no answer within 0.5 s",
                "rollout.reward.timeout_s",
            ],
        ),
        (["rollout.reward.name=nan"], ["the reward function returned no finite number", "value is nan"]),
        (
            ["rollout.reward.name=exits"],
            ["the reward function ended its process", "reward 'exits': its process ended with exit code 3"],
        ),
        (
            ["rollout.workflow.name=broken"],
            ["AttributeError: 'Generation' object has no attribute 'nothing'", r"user\.py:38, in arun_episode"],
        ),
    ],
    ids=["raises", "hangs", "nan", "exits", "workflow"],
)
def test_a_bad_episode_ends_the_run_by_name(bench: Path, words: Sequence[str], said: Sequence[str]) -> None:
    """The episode, the user's line, the fix; and the same folder can be used again once it is corrected."""
    with started(bench, *words, "rollout.max_failed_share=0") as run:
        refusal = refused(run)
        recorded(run, refusal)

    assert refusal.code == 1
    assert re.match(r"EpisodeFailed: episode train/0/\d, member \d, failed", refusal.error)
    assert all(re.search(part, refusal.error) for part in said), refusal.error
    with RunFolder(run.folder).held(resume=False):
        assert not run.folder.joinpath("metrics.jsonl").exists()


@pytest.mark.slow
def test_an_interpreter_without_areal_is_named(bench: Path) -> None:
    """`rollout.python` is there but has nothing installed: the worker's last words and what to install."""
    venv.create(bench / "bare", with_pip=False, symlinks=True)

    with started(bench, f"rollout.python={bench / 'bare' / 'bin' / 'python'}") as run:
        refusal = refused(run)
        recorded(run, refusal)

    assert refusal.code == 1
    assert refusal.error.startswith("WorkerDied: worker rollout/0 (rank 0, process ")
    assert "No module named 'areal_local'" in refusal.error
    assert "fix: install areal-core[local] and the backend's plugin for that interpreter" in refusal.error


@pytest.mark.slow
def test_a_checkpoint_too_large_for_the_disk_leaves_the_one_before(bench: Path) -> None:
    """Files may grow to 600 kB from step 3 on; the optimizer's state needs more, also a minute later."""
    with started(bench, "checkpoint.every_steps=2", "episodes.keep=0") as run:
        run.wait_for_step(3)
        for process in [run.process.pid, *(child.pid for child in run.processes)]:
            resource.prlimit(process, resource.RLIMIT_FSIZE, (600_000, 600_000))
        refusal = refused(run)
        recorded(run, refusal)

    steps = [int(path.name.removeprefix("step-")) for path in RunFolder(run.folder).checkpoints()]
    told = [e["version"] for e in read_lines(run.folder / "events.jsonl") if e["kind"] == "checkpoint_refused"]
    assert refusal.code == 1
    assert re.match(r"StorageError: checkpoint of step \d+ was not written", refusal.error)
    assert told == [max(steps) + 2]
    assert f"free space on the disk of {run.folder}; the previous checkpoint is untouched" in refusal.error
    assert (run.folder / "checkpoints" / f"step-{max(steps):06d}" / "loop.json").is_file()


@pytest.fixture
def disk(bench: Path) -> Iterator[Path]:
    """A disk of 16 MB at `run`; only root can make one."""
    folder = bench / "run"
    folder.mkdir()
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "none", folder]).returncode:
        pytest.skip("no disk of its own can be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.mark.slow
def test_a_disk_that_is_full_for_a_moment_costs_a_moment(bench: Path, disk: Path) -> None:
    """Its checkpoint is written later, and no line and no episode is missing."""
    with started(bench, "checkpoint.every_steps=3", "checkpoint.keep=1", "steps=30") as run:
        run.wait_for_step(2)
        filler = disk / "filler"
        with pytest.raises(OSError, match="No space left"), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(65536))
        assert run.process.stdout is not None
        while "it is tried again: " not in run.process.stdout.readline():
            assert run.process.poll() is None
        filler.unlink()
        code, output = run.watch()

        assert code == 0, output
        assert [record["step"] for record in run.steps()] == list(range(1, 31))
        kinds = {event["kind"] for event in read_lines(disk / "events.jsonl")}
        assert kinds & {"checkpoint_refused", "episodes_written_again"}, "the store may be first to wait for the disk"
    assert RunFolder(disk).latest() == disk / "checkpoints" / "step-000030"


@pytest.mark.slow
def test_a_full_disk_is_told_although_nothing_can_be_written_any_more(bench: Path, disk: Path) -> None:
    """Not one byte for events, summary or report: the first error still comes out, and old checkpoints stay whole."""
    with started(bench, "checkpoint.every_steps=2", "checkpoint.keep=1") as run:
        run.wait_for_step(3)
        with (disk / "filler").open("wb", buffering=0) as filler:
            while run.process.poll() is None:  # what is given up on the way makes room again
                with suppress(OSError):
                    filler.write(bytes(65536))
        refusal = refused(run)

    (checkpoint,) = RunFolder(disk).checkpoints()
    assert refusal.code == 1
    assert re.match(rf"StorageError: (checkpoint of step|{disk})", refusal.error), refusal.error
    assert "No space left on device" in refusal.error
    assert json.loads((checkpoint / "loop.json").read_text())["version"] == int(checkpoint.name.removeprefix("step-"))
    for name in ("metrics.jsonl", "events.jsonl"):
        assert (disk / name).read_bytes().endswith(b"\n"), f"{name} ends in a torn line"


@pytest.mark.slow
def test_dropping_what_is_too_old_works_and_another_data_set_is_refused_on_resume(bench: Path) -> None:
    """`staleness_policy: drop` finishes within its bound; a resume on other rows would train some twice."""
    words = ["rollout.staleness_policy=drop", "rollout.max_staleness=1", "rollout.max_concurrent=6"]
    with started(bench, *words, "steps=6") as run:
        code, output = run.watch()

        assert code == 0, output
        assert [record["episodes"] for record in run.steps()] == [4] * 6
        assert run.summary()["max_staleness_seen"] <= 1
    before = (run.folder / "metrics.jsonl").read_text()

    with started(bench, "--resume", "run", "steps=9", "data.options.prompt=ba>") as run:
        refusal = refused(run)
        recorded(run, refusal)

    assert refusal.code == 2
    assert refusal.error.startswith("DatasetError: the data set holds other rows than the saved run had")
    assert "resume with the same data" in refusal.error
    assert (run.folder / "metrics.jsonl").read_text() == before
