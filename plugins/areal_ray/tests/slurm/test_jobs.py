"""Jobs of `areal slurm` on a real Slurm: a run on two nodes, requeues, a failure, a cancelled job."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from attrs import frozen

from areal_ray.slurm.following import Following
from areal_ray.slurm.site import cancel, state_of
from areal_tasks.tiny import make_spell_model

from .cluster import Slurm, running, why_not

pytestmark = [pytest.mark.slow, pytest.mark.cluster, pytest.mark.skipif(bool(why_not()), reason=why_not())]

SPELL = Path(__file__).parents[4] / "examples" / "offline" / "spell.yaml"
QUICK = ("evaluation.every_steps=0", "evaluation.before=false", "evaluation.data=null")
PATIENCE_S = 240.0


@frozen(kw_only=True)
class Site:
    """A cluster, and a folder to submit from that holds a model."""

    slurm: Slurm
    folder: Path

    def areal(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run `areal slurm WORDS...` to its end."""
        command = [str(Path(sys.executable).parent / "areal"), "slurm", str(SPELL), "model.path=model", *QUICK, *words]
        return subprocess.run(
            command,
            cwd=self.folder,
            env=self.slurm.env,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )

    def submitted(self, out: str, *words: str) -> int:
        """Submit a job and return its number."""
        done = self.areal(f"out={out}", *words)
        assert done.returncode == 0, done.stdout + done.stderr
        return int(done.stdout.partition("\njob ")[2].partition(",")[0])

    def run_again(self, job: int) -> None:
        """Have a requeued job start now; Slurm lets two minutes pass by itself."""
        self.until(lambda: self.slurm.state(job) == "PENDING", "requeued")
        self.slurm.ask("scontrol", "update", f"job={job}", "StartTime=now")

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Return once a condition holds."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            logs = [file.read_text() for file in self.folder.glob("*/slurm/*.log")]
            assert time.monotonic() < deadline, "\n".join([f"{what} did not come", *logs])
            time.sleep(0.2)  # between looks at other processes

    def until_step(self, out: str, step: int) -> None:
        """Return once a run has finished a step."""
        metrics = self.folder / out / "metrics.jsonl"
        self.until(lambda: metrics.exists() and len(metrics.read_text().splitlines()) >= step, f"step {step}")

    def until_ended(self, job: int) -> str:
        """Return the last state of a job, once it has ended."""
        self.until(lambda: self.slurm.state(job) not in ("PENDING", "RUNNING", "COMPLETING"), "the end")
        return self.slurm.state(job)

    def log_of(self, out: str, job: int) -> Path:
        """Return the file with a job's output."""
        return self.folder / out / "slurm" / f"{job}.log"

    def log(self, out: str, job: int) -> str:
        """Return a job's output."""
        return self.log_of(out, job).read_text()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A cluster and a model, for all tests of this file."""
    folder = tmp_path_factory.mktemp("submit")
    make_spell_model(folder / "model", seed=1)
    with running() as slurm:
        yield Site(slurm=slurm, folder=folder)


def processes_of(job: int) -> list[psutil.Process]:
    """Return the processes that a job's Ray started, or its run."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("SLURM_JOB_ID") == str(job) or f"/tmp/areal-{job}-" in " ".join(process.cmdline()):
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def left_of(job: int) -> list[str]:
    """Return what a job left behind: processes and Ray's folders."""
    return [str(process) for process in processes_of(job)] + [str(path) for path in Path("/tmp").glob(f"areal-{job}-*")]


def summary(folder: Path) -> dict[str, Any]:
    """Return a run's summary. Any: as written."""
    found: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return found


def token_of(job: int) -> str:
    """Return the token of a job's Ray cluster, out of the memory of one of its processes."""
    for process in processes_of(job):
        with suppress(psutil.Error):
            if token := process.environ().get("RAY_AUTH_TOKEN"):
                return token
    raise AssertionError("no process of the job has the token")


def words_of_processes(processes: Iterable[psutil.Process]) -> list[str]:
    """Return every word of the processes' command lines."""
    words: list[str] = []
    for process in processes:
        with suppress(psutil.Error):
            words += process.cmdline()
    return words


def test_a_run_whose_job_is_put_back_goes_on_by_itself_to_its_end(site: Site) -> None:
    """A run on two nodes is told that its time is up, then its job is killed by a requeue: every prompt counts once.

    The name of its folder needs quotes in every language. The token of its cluster is in no file and no command line.
    """
    out = "it's $HOME 5% %j"
    words = ("--nodes", "2", "--cpus-per-node", "1", "--requeue", "steps=12", "checkpoint.every_steps=3")
    job = site.submitted(out, *words)
    site.until_step(out, 2)
    token, seen = token_of(job), words_of_processes(psutil.process_iter())
    site.slurm.ask("scancel", "--signal=USR1", "--batch", str(job))  # as Slurm does before the time limit
    site.run_again(job)
    site.until(lambda: "the run goes on" in site.log(out, job), "the run once more")
    site.slurm.ask("scontrol", "requeue", str(job))
    site.run_again(job)

    assert site.until_ended(job) == "COMPLETED"
    assert "the run was stopped and goes back to the queue" in site.log(out, job)
    assert site.log(out, job).count("the run goes on with what") == 2
    whole = summary(site.folder / out)
    assert (whole["prompts_lost"], whole["prompts_twice"], whole["steps"]) == (0, 0, 12)
    site.until(lambda: not left_of(job), f"an end of {left_of(job)}")
    assert len(token) == 64
    assert not [word for word in seen if token in word]
    assert not [
        path for path in (site.folder / out).rglob("*") if path.is_file() and token in path.read_text("latin-1")
    ]


def test_the_exit_code_of_a_job_is_that_of_its_run(site: Site) -> None:
    """A run whose model is gone when its turn comes ends as bad input does, 2; so does the job, and who follows it."""
    shutil.copytree(site.folder / "model", site.folder / "gone")
    job = site.submitted("failed", "--nodes", "1", "--cpus-per-node", "4", "--sbatch", "hold", "model.path=gone")
    shutil.rmtree(site.folder / "gone")
    site.slurm.ask("scontrol", "release", str(job))
    told = io.StringIO()
    with site.slurm.speaking():
        code = Following(job=job, log=site.log_of("failed", job), state=state_of, cancel=cancel, out=told).until_end()

    assert (site.slurm.state(job), code) == ("FAILED", 2)
    assert "AREAL-E204" in told.getvalue()
    assert f"job {job} FAILED, exit code 2" in told.getvalue()
    site.until(lambda: not left_of(job), f"an end of {left_of(job)}")


def test_a_node_that_does_not_see_the_run_folder_says_so(site: Site) -> None:
    """It is found out before Ray starts: nothing is trained on half of the nodes."""
    job = site.submitted("apart", "--nodes", "1", "--cpus-per-node", "4", "--sbatch", "hold")
    shutil.rmtree(next((site.folder / "apart" / "slurm").glob("job-*")))
    site.slurm.ask("scontrol", "release", str(job))

    assert site.until_ended(job) == "FAILED"
    assert "does not see the run folder" in site.log("apart", job)


def test_a_cancelled_job_leaves_no_process(site: Site) -> None:
    """`scancel` in the middle of a run ends the controller, Ray and every worker, and no requeue follows."""
    job = site.submitted("cancelled", "--nodes", "1", "--cpus-per-node", "4", "--requeue", "steps=5000")
    site.until(lambda: "train" in words_of_processes(processes_of(job)), "the controller")
    there = processes_of(job)

    site.slurm.ask("scancel", str(job))

    assert there
    assert site.until_ended(job) == "CANCELLED"
    site.until(lambda: not processes_of(job), "an end of its processes")
    assert not [process for process in there if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]
    for folder in Path("/tmp").glob(f"areal-{job}-*"):  # whom Slurm kills does not tidy up
        shutil.rmtree(folder)
