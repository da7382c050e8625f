"""A real Slurm of two nodes on this machine: munged, slurmctld and two slurmd, in a folder of their own.

Knows: what these daemons need of a configuration, and when they are ready.
Does not know: jobs.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from attrs import frozen

DAEMONS = ("munged", "slurmctld", "slurmd", "sbatch")
_READY_S = 60.0
_NODES = ("n1", "n2")
_CONF = """
ClusterName=areal
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
MpiDefault=none
GresTypes=gpu
KillWait=5
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=4 RealMemory=4000 Gres=gpu:1
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=4 RealMemory=4000 Gres=gpu:1
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def why_not() -> str:
    """Say why there can be no Slurm here; nothing if there can."""
    if missing := [name for name in DAEMONS if shutil.which(name) is None]:
        return f"{', '.join(missing)} is not installed: apt install slurmctld slurmd munge"
    return "" if os.geteuid() == 0 else "its daemons need root"


@frozen(kw_only=True)
class Slurm:
    """A cluster that is up."""

    folder: Path

    @property
    def env(self) -> Mapping[str, str]:
        """Return the environment in which Slurm's commands speak to it."""
        return {**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf")}

    @contextmanager
    def speaking(self) -> Iterator[None]:
        """Have this process speak to the cluster too."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SLURM_CONF", str(self.folder / "slurm.conf"))
            yield

    def ask(self, *words: str) -> str:
        """Run a command of Slurm and return what it said."""
        done = subprocess.run(words, env=self.env, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"
        return done.stdout.strip()

    def state(self, job: int) -> str:
        """Return the state of a job in Slurm's words."""
        told = self.ask("scontrol", "show", "job", str(job), "--oneliner")
        return told.partition("JobState=")[2].split()[0]


@contextmanager
def running() -> Iterator[Slurm]:
    """Have a cluster for the length of the block."""
    folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))
    with ExitStack() as after:
        after.callback(shutil.rmtree, folder, ignore_errors=True)
        slurm = Slurm(folder=folder)
        for name in ("munge", "state", "spool"):
            (folder / name).mkdir(mode=0o700)
        (folder / "munge" / "key").write_bytes(os.urandom(1024))
        (folder / "munge" / "key").chmod(0o600)
        conf = _CONF.format(folder=folder, host=socket.gethostname(), ports=_free_ports(3))
        (folder / "slurm.conf").write_text(conf, encoding="utf-8")
        (folder / "gres.conf").write_text("Name=gpu File=/dev/null\n", encoding="utf-8")
        paths = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        munge = [f"--{option}={folder}/munge/{name}" for option, name in paths.items()]
        # --force: nobody but root is to reach its socket.
        _start(after, slurm, ["munged", "--foreground", "--force", *munge])
        _wait_for(lambda: (folder / "munge" / "socket").exists(), "munged")
        _start(after, slurm, ["slurmctld", "-D", "-c"])
        for node in _NODES:
            _start(after, slurm, ["slurmd", "-D", "-N", node])
        _wait_for(lambda: _idle(slurm), "slurmctld and its nodes")
        yield slurm
        subprocess.run(
            ["scancel", "--full", "--user=root"], env=slurm.env, capture_output=True, timeout=60, check=False
        )


def _start(after: ExitStack, slurm: Slurm, command: Sequence[str]) -> None:
    with (slurm.folder / f"{command[0]}.out").open("ab") as output:
        process = subprocess.Popen(command, env=slurm.env, stdout=output, stderr=output)
    after.callback(_end, process)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(20)


def _idle(slurm: Slurm) -> bool:
    command = ["sinfo", "--noheader", "--Node", "--format=%T"]
    done = subprocess.run(command, env=slurm.env, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout.split() == ["idle"] * len(_NODES)


def _wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _READY_S
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come up within {_READY_S:g} s"
        time.sleep(0.1)  # between looks at other processes


def _free_ports(count: int) -> list[int]:
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
