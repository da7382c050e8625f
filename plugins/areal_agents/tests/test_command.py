"""An agent that is a command: what it is given, what is made of its end, and that nothing of it is left."""

from __future__ import annotations

import asyncio
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from plugins.areal_sandbox.tests import images

from areal_agents.command import PASSED
from areal_agents.config import AgentConfig
from areal_agents.container import Container, container_program
from areal_agents.workflow import AgentWorkflow
from areal_core.contract.data import Episode
from areal_core.contract.errors import ConfigError, EpisodeFailed

from .speaking import Speaking, text_of

ASK = """
import json, os, sys, urllib.request

def post(url, body):
    head = {"content-type": "application/json", "authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), head)) as answer:
        return json.load(answer)

row = json.load(sys.stdin)
answer = post(os.environ["OPENAI_BASE_URL"] + "/completions", {"prompt": row["prompt"]})["choices"][0]["text"]
"""


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], str]:
    def write(text: str) -> str:
        path = tmp_path / "agent.py"
        path.write_text(ASK + text)
        return str(path)

    return write


def run(command: list[str], row: dict[str, Any] | None = None, **options: Any) -> Episode:
    """Make one episode by a command."""
    return asyncio.run(episode(command, row or {"prompt": "ab>"}, **options))


async def episode(command: list[str], row: dict[str, Any], **options: Any) -> Episode:
    workflow = AgentWorkflow(AgentConfig(command=command, **options))
    try:
        return await workflow.arun_episode(Speaking(), row)
    finally:
        await workflow.close()


def test_a_command_is_given_its_row_and_its_endpoint(script: Any) -> None:
    """As standard input and as a file, by variables that clients read; what it wrote is the reward, with its parts."""
    made = run(
        [
            "python",
            script("""
assert row == json.load(open(os.environ["AREAL_ROW"])) and sys.argv[1:] == ["say ab>", "{other}", '[1, true]']
assert os.environ["ANTHROPIC_BASE_URL"] + "/v1" == os.environ["OPENAI_BASE_URL"]
assert os.environ["ANTHROPIC_API_KEY"] == os.environ["OPENAI_API_KEY"]
with open(os.environ["AREAL_REWARD"], "w") as file:
    json.dump({"reward": 0.5, "form": 1.0}, file)
"""),
            "say {prompt}",
            "{other}",
            "{flags}",
        ],
        {"prompt": "ab>", "flags": [1, True]},
    )

    assert text_of(made)[0].startswith("ab>xa")
    assert made.trajectories[0].reward == 0.5
    assert made.metrics["form"] == 1.0


@pytest.mark.parametrize(
    ("tells", "reward"),
    [
        ('open(os.environ["AREAL_REWARD"], "w").write("0.75")', 0.75),
        ('post(os.environ["AREAL_REWARD_URL"], {"reward": -2.0})', -2.0),
        ('print(json.dumps({"reward": 9.0}))', 0.25),
    ],
)
def test_a_reward_is_written_told_or_judged(script: Any, tells: str, reward: float) -> None:
    """What a command prints is no reward: it may be the policy's own words."""
    assert run(["python", script(tells)]).trajectories[0].reward == reward


def test_a_command_sees_nothing_of_this_process_but_what_is_allowed(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not its secrets, not its home, not its folder; and what it wrote is gone afterwards."""
    monkeypatch.setenv("OPENAI_API_KEY", "of the user")
    monkeypatch.setenv("AWS_SECRET", "of the user")
    monkeypatch.setenv("WANTED", "named")
    seen = tmp_path / "seen.txt"
    run(
        [
            "python",
            script("""
open("left.txt", "w").write("x")
with open(row["seen"], "w") as file:
    print(os.getcwd(), oct(os.stat("..").st_mode & 0o777), os.listdir(os.environ["TMPDIR"]), file=file)
    print("\\n".join(f"{name}={value}" for name, value in os.environ.items()), file=file)
"""),
        ],
        {"prompt": "ab>", "seen": str(seen)},
        environment=["WANTED"],
    )

    where, *lines = seen.read_text().splitlines()
    variables = dict(line.split("=", 1) for line in lines)
    folder = where.split()[0]
    ours = {"HOME", "TMPDIR", "NO_PROXY", "OPENAI_BASE_URL", "OPENAI_API_BASE", "OPENAI_API_KEY", "ANTHROPIC_BASE_URL"}
    ours |= {
        "AREAL_EPISODE",
        "ANTHROPIC_API_KEY",
        "AREAL_ROW",
        "AREAL_REWARD",
        "AREAL_REWARD_URL",
        "WANTED",
        "PWD",
        "_",
        "SHLVL",
    }
    assert set(variables) <= {*PASSED, *ours} and variables["WANTED"] == "named"
    assert "of the user" not in seen.read_text()
    assert variables["HOME"] == folder and where.split()[1:] == ["0o700", "[]"]
    assert not Path(folder).exists() and not Path(variables["AREAL_ROW"]).parent.exists()


def test_a_command_that_fails_fails_its_episode_with_its_last_words(script: Any) -> None:
    """Without the key of its session."""
    with pytest.raises(EpisodeFailed, match="exit code 3") as raised:
        run(
            ["python", script('print("cannot go on with", os.environ["OPENAI_API_KEY"], file=sys.stderr); sys.exit(3)')]
        )

    assert "cannot go on with <redacted>" in raised.value.why


def test_what_commands_write_is_kept_in_a_file(script: Any, tmp_path: Path) -> None:
    """Of those that end well, fail and are stopped; in one piece each, without keys."""
    log = tmp_path / "agents.log"
    for ends in ("", "sys.exit(3)", "import time; time.sleep(600)"):
        path = script(f'print("I am", os.environ["AREAL_EPISODE"], os.environ["OPENAI_API_KEY"], flush=True); {ends}')
        with suppress(EpisodeFailed):
            run(["python", path], log=str(log), agent_timeout_s=1.0 if "sleep" in ends else 60.0)

    assert log.read_text() == (
        "==== train/0/x: ended with exit code 0\nI am train/0/x <redacted>\n"
        "==== train/0/x: ended with exit code 3\nI am train/0/x <redacted>\n"
        "==== train/0/x: was not done after 1 s, and killed\nI am train/0/x <redacted>\n"
    )


@pytest.mark.parametrize("prompt", ["a\0b", "x" * 200_000])
def test_a_column_that_can_be_no_argument_fails_the_episode(prompt: str) -> None:
    """It says how a row of any size is read."""
    with pytest.raises(EpisodeFailed, match="could not be started") as raised:
        run(["true", "{prompt}"], {"prompt": prompt})

    assert "standard input" in raised.value.fix


def test_words_that_are_no_reward_fail_the_episode(script: Any) -> None:
    with pytest.raises(EpisodeFailed, match="'good'"):
        run(["python", script('open(os.environ["AREAL_REWARD"], "w").write("good")')])
    with pytest.raises(EpisodeFailed, match="returned"):
        run(["python", script("open(os.environ['AREAL_REWARD'], 'w').write('{\"form\": 1}')")])


FAMILY = """
import subprocess, time
code = "import os, sys, time; sys.argv[1] == 'away' and os.setsid(); print(os.getpid(), flush=True); time.sleep(600)"
with open(row["told"], "w") as line:
    for where in ("here", "away"):
        subprocess.Popen([sys.executable, "-c", code, where], stdout=line)
    time.sleep(600)
"""


class Line:
    """A pipe by name that a command's whole family holds open: it is at its end when none of them is left."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "line"
        os.mkfifo(self.path)
        self._end = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)

    def heard(self, num_lines: int) -> None:
        """Wait until so many of the family said that they are there."""
        said = b""
        while said.count(b"\n") < num_lines:
            self.wait()
            said += (part := os.read(self._end, 4096))
            assert part, "all of them are gone"

    def told(self) -> int:
        """Return how many have said so since it was asked before; nobody waits for more."""
        said = b""
        with suppress(BlockingIOError):
            while part := os.read(self._end, 4096):
                said += part
        return said.count(b"\n")

    @property
    def over(self) -> bool:
        """Whether all of them are gone; nobody waits for that."""
        while True:
            try:
                if not os.read(self._end, 4096):
                    return True
            except BlockingIOError:
                return False

    def wait(self) -> None:
        """Wait until something is said, or all of them are gone."""
        select.select([self._end], [], [])


@pytest.fixture
def line(tmp_path: Path) -> Line:
    return Line(tmp_path)


def test_a_cancelled_episode_leaves_nothing_running(script: Any, line: Line) -> None:
    """Neither the command nor what it started, also not what left its group."""

    async def cancelled() -> None:
        work = asyncio.create_task(episode(["python", script(FAMILY)], {"prompt": "ab>", "told": str(line.path)}))
        await asyncio.to_thread(line.heard, 2)
        assert not line.over
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work

    asyncio.run(cancelled())
    assert line.over


def test_a_command_that_takes_too_long_is_killed_with_all_it_started(script: Any, line: Line) -> None:
    """One that was killed before it had started everything, on a busy machine, is given longer."""
    row = {"prompt": "ab>", "told": str(line.path)}
    for seconds in (1, 8, 64):
        with pytest.raises(EpisodeFailed, match=f"not done after {seconds} s"):
            run(["python", script(FAMILY)], row, agent_timeout_s=float(seconds))
        if (told := line.told()) == 2:
            break

    assert told == 2
    assert line.over


KILLED = """
import asyncio, os, pathlib, sys
from areal_agents.process import run_command

code = "import sys, time; line = open(sys.argv[1], 'w'); print('here', file=line, flush=True); time.sleep(600)"
command = [sys.executable, "-c", code, sys.argv[1]]
asyncio.run(run_command(command, environment=os.environ, folder=pathlib.Path("."), timeout_s=600))
"""


def test_a_command_ends_with_a_controller_that_is_killed(line: Line) -> None:
    """It has no chance to tell anybody."""
    controller = subprocess.Popen([sys.executable, "-c", KILLED, str(line.path)])
    line.heard(1)
    controller.send_signal(signal.SIGKILL)
    controller.wait()

    line.wait()
    assert line.over


def test_no_more_commands_run_at_once_than_may(script: Any, tmp_path: Path) -> None:
    path = script("""
import fcntl
with open(row["lock"], "a") as file:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
""")

    async def several() -> None:
        workflow = AgentWorkflow(AgentConfig(command=["python", path], processes=1))
        row = {"prompt": "ab>", "lock": str(tmp_path / "lock")}
        await asyncio.gather(*(workflow.arun_episode(Speaking(letter), row) for letter in "abc"))
        await workflow.close()

    asyncio.run(several())


CONTAINER = """#!/bin/sh
echo "$@" >>"$(dirname "$0")/told"
[ "$1" = rm ] || [ "$1" = version ] && exit 0
while [ "$1" != my-image ]; do
  case "$1" in *=*) export "$1" ;; esac
  shift
done
shift
exec "$@"
"""


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program of that name which runs what it is given without a container, and tells what that was."""
    program = tmp_path / "bin" / "docker"
    program.parent.mkdir()
    program.write_text(CONTAINER)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return program.parent / "told"


def test_a_command_runs_in_a_container_whose_end_is_sure(script: Any, docker: Path) -> None:
    """Its key is on no command line, and it is removed by name whatever happened."""
    path = script('open(os.environ["AREAL_REWARD"], "w").write("0.75")')
    made = run([sys.executable, path], container="my-image")

    *asked, begun, ended = docker.read_text().splitlines()
    words = begun.split()
    assert set(asked) == {"version"}
    assert made.trajectories[0].reward == 0.75
    assert words[:4] == ["run", "--rm", "--interactive", "--name"] and f"my-image {sys.executable}" in begun
    assert (
        "--env OPENAI_API_KEY" in begun
        and "--env OPENAI_BASE_URL=http" in begun
        and "areal-agent-" in words[4]
        and "OPENAI_API_KEY=" not in begun
    )
    assert ended == f"rm --force {words[4]}"


INSIDE = """
grep -q 'ab>' || exit 3
test "$(pwd)" = "$HOME" && echo x > left.txt || exit 4
curl -s -H "content-type: application/json" -H "authorization: Bearer $OPENAI_API_KEY" \
  -d '{"prompt": "ab>"}' "$OPENAI_BASE_URL/completions" && echo 0.5 > "$AREAL_REWARD"
"""


@pytest.fixture
def podman(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An image of this machine's own commands for the real podman, by a runtime that works here."""
    if not shutil.which("podman") or not shutil.which("curl"):
        pytest.skip("no podman, or no curl to put into its image")
    monkeypatch.setattr("areal_agents.container.PROGRAMS", ("podman",))
    monkeypatch.setattr(images, "COMMANDS", [*images.COMMANDS, "curl"])
    name = "areal-agents-test"
    subprocess.run(["podman", "import", "-", name], input=images.image(), capture_output=True, check=True)
    for runtime in ("", "runc"):
        (tmp_path / "containers.conf").write_text(f'[engine]\nruntime = "{runtime}"\n' if runtime else "")
        monkeypatch.setenv("CONTAINERS_CONF", str(tmp_path / "containers.conf"))
        words = Container(program="podman", image=name, folder=tmp_path).run(["sh", "-c", "true"], tmp_path)
        if (tried := subprocess.run(words, capture_output=True, check=False)).returncode == 0:
            break
    else:
        subprocess.run(["podman", "rmi", "--force", name], capture_output=True, check=True)
        pytest.skip(f"podman makes no containers here: {tried.stderr.decode()[-200:]}")
    yield name
    subprocess.run(["podman", "rmi", "--force", name], capture_output=True, check=True)


def test_a_command_runs_in_a_real_container(podman: str) -> None:
    """It finds its row, its folder and its endpoint; nothing is left, also of one that takes too long."""
    made = run(["sh", "-c", INSIDE], container=podman)
    with pytest.raises(EpisodeFailed, match="not done after 2 s"):
        run(["sh", "-c", "sleep 600"], container=podman, agent_timeout_s=2.0)

    assert made.trajectories[0].reward == 0.5 and text_of(made)[0].startswith("ab>xa")
    listed = ["podman", "ps", "--all", "--quiet", "--filter", f"ancestor={podman}"]
    assert subprocess.run(listed, capture_output=True, text=True, check=True).stdout == ""


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "neither run nor command"),
        ({"run": "json:loads", "command": ["true"]}, "both set"),
        ({"run": "nowhere"}, "names no function"),
        ({"run": "nowhere.py:run"}, "no file nowhere.py"),
        ({"run": "no.such.module:run"}, "No module named"),
        ({"run": "json:loads", "container": "image"}, "container is set beside run"),
        ({"run": "json:loads", "log": "x"}, "log is set beside run"),
        ({"command": ["true"], "log": "no/such/folder/x.log"}, "no folder no/such/folder"),
        ({"command": ["no-such-program"]}, "no program 'no-such-program'"),
        ({"command": ["python", "nowhere.py"]}, "no file 'nowhere.py'"),
    ],
)
def test_an_agent_that_is_not_there_is_refused_while_planning(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError) as raised:
        AgentConfig(**options)

    assert told in str(raised.value)


def test_a_container_without_a_program_for_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigError, match="nothing here that runs containers"):
        AgentConfig(command=["true"], container="image")


def test_a_program_that_does_not_answer_runs_no_containers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As docker without its daemon: podman is taken, or both are told."""
    for name, code in (("docker", 1), ("podman", 0)):
        (tmp_path / name).write_text(f"#!/bin/sh\necho no daemon of {name} >&2; exit {code}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))

    assert container_program() == str(tmp_path / "podman")
    (tmp_path / "podman").unlink()
    with pytest.raises(ConfigError, match="docker: no daemon of docker"):
        container_program()


def test_a_function_is_looked_for_without_running_its_file(tmp_path: Path) -> None:
    """Defined in a branch, or imported, it is there; a file that is no Python is told."""
    path = tmp_path / "mine.py"
    path.write_text("raise SystemExit\nif True:\n    async def run(row, base_url, api_key): ...\n")
    AgentConfig(run=f"{path}:run")
    with pytest.raises(ConfigError, match="defines no 'other'"):
        AgentConfig(run=f"{path}:other")
    path.write_text("def run(:")
    with pytest.raises(ConfigError, match="SyntaxError"):
        AgentConfig(run=f"{path}:run")
