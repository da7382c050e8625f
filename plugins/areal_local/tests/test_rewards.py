"""A reward is a finite number or a typed failure; a function that hangs or dies takes nobody with it."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from areal_core.contract.errors import BackendNotFound, ConfigError, RewardFailed
from areal_core.contract.workflow import RewardInput, RewardResult, RewardStatus, require_ok
from areal_local.rewards.child import RewardTarget, judge
from areal_local.rewards.pool import RewardPool

FILE = """
import builtins, os, subprocess, time
from areal_core.plugins.marks import reward

@reward("scripted")
def scripted(prompt, completion, completion_ids, stop_reason, row):
    if completion == "hang":
        time.sleep(1000)
    if completion == "exit":
        os._exit(3)
    if completion == "exit well":
        os._exit(0)
    if completion == "raise":
        raise KeyError("answer")
    if completion in ("SystemExit", "KeyboardInterrupt", "GeneratorExit"):
        raise getattr(builtins, completion)(0)
    if completion == "spawn":
        return subprocess.Popen(["sleep", "1000"], start_new_session=row.get("apart", False)).pid
    if completion == "pid":
        return os.getpid()
    if completion.startswith("killed "):
        count = len(os.listdir(completion[7:]))
        if count < row["times"]:
            open(os.path.join(completion[7:], str(count)), "w").close()
            os.kill(os.getpid(), 9)
    return {"value": len(completion) + row["bonus"], "length": len(completion_ids)}

@reward("unbuildable", config=dict)
def unbuildable(config):
    return 5
"""


@pytest.fixture
def user_file(tmp_path: Path) -> str:
    path = tmp_path / "my_rewards.py"
    path.write_text(FILE)
    return str(path)


def value(completion: str, **row: object) -> RewardInput:
    row = {"bonus": 0.5, **row}
    return RewardInput(prompt="p", completion=completion, completion_ids=(4, 5), stop_reason="stop", row=row)


@asynccontextmanager
async def scripted(
    user_file: str, *, timeout_s: float = 30.0, tell: list[str] | None = None
) -> AsyncIterator[RewardPool]:
    """Yield a started pool of one process; `tell` gets the kinds of its events."""
    target = RewardTarget(name="scripted", options={}, imports=(user_file,))
    told = [] if tell is None else tell
    pool = RewardPool(target, timeout_s=timeout_s, tell=lambda kind, **_: told.append(kind))
    try:
        await pool.start()
        yield pool
    finally:
        await pool.close()


@pytest.mark.parametrize("returned", [True, 1, 0.25, -3, RewardResult(value=2.0), {"value": 1, "part": False}])
def test_finite_numbers_are_rewards(returned: object) -> None:
    """int and bool are numbers."""
    result = judge(returned)

    assert result.status == RewardStatus.OK
    assert isinstance(result.value, float)


@pytest.mark.parametrize(
    "returned",
    [math.nan, math.inf, None, "1.0", [1.0], 10**400, {}, {"value": 1.0, "part": math.nan}, RewardResult(value=None)],
)
def test_anything_else_is_invalid_and_never_a_zero(returned: object) -> None:
    """NaN, text, nothing, a broken part: typed as invalid, without a value, and an error for the workflow."""
    result = judge(returned)

    assert (result.status, result.value) == (RewardStatus.INVALID, None)
    with pytest.raises(RewardFailed, match="the reward function returned no finite number for episode x"):
        require_ok(result, "episode x")


def test_every_way_a_reward_can_end(user_file: str) -> None:
    """ok, raised, crashed and timeout, side by side; the hung process is killed and the pool goes on."""

    async def test() -> None:
        target = RewardTarget(name="scripted", options={}, imports=(user_file,))
        pool = RewardPool(target, workers=1, timeout_s=1.0)
        await pool.start()
        names = ("abc", "raise", "exit", "abcd")
        good, raised, crashed, after = await asyncio.gather(*(pool.score(value(name)) for name in names))
        pid = int((await pool.score(value("pid"))).value or 0)
        hung = await pool.score(value("hang"))
        killed = not psutil.pid_exists(pid)
        last = await pool.score(value("abcde"))
        await pool.close()
        await pool.close()

        assert (good.status, good.value, good.components) == (RewardStatus.OK, 3.5, {"length": 2.0})
        assert (raised.status, raised.value) == (RewardStatus.RAISED, None)
        assert "KeyError: 'answer'" in raised.detail
        assert crashed.status == RewardStatus.CRASHED
        assert "exit code 3" in crashed.detail
        assert hung.status == RewardStatus.TIMEOUT
        assert killed
        assert (after.value, last.value) == (4.5, 5.5)

    asyncio.run(test())


def test_one_bad_completion_does_not_spoil_the_trip_it_travels_with(user_file: str) -> None:
    """Quick rewards travel together; when one of them hangs, the others still get their own answers."""

    async def test() -> None:
        pool = RewardPool(RewardTarget(name="scripted", options={}, imports=(user_file,)), timeout_s=1.0)
        await pool.start()
        for _ in range(60):  # the pool learns that these are quick
            await pool.score(value("warm"))
        names = ["a", "hang", "aaa"]
        results = await asyncio.gather(*(pool.score(value(name)) for name in names))
        given_up = asyncio.ensure_future(pool.score(value("hang")))
        await asyncio.sleep(0)
        await pool.close()

        assert [result.value for result in results] == [1.5, None, 3.5]
        assert results[1].status == RewardStatus.TIMEOUT
        with pytest.raises(asyncio.CancelledError):
            await given_up

    asyncio.run(test())


def test_a_wrong_reward_is_refused_before_training(user_file: str, tmp_path: Path) -> None:
    """An unknown name, a file that raises and a factory that gives no function are errors of `start`."""
    broken = tmp_path / "broken.py"
    broken.write_text("import not_there_at_all")

    async def start(name: str, *imports: str) -> None:
        pool = RewardPool(RewardTarget(name=name, options={}, imports=imports))
        try:
            await pool.start()
        finally:
            await pool.close()

    with pytest.raises(BackendNotFound, match="scriptde"):
        asyncio.run(start("scriptde", user_file))
    with pytest.raises(ConfigError, match=r"broken\.py"):
        asyncio.run(start("x", str(broken)))
    with pytest.raises(RewardFailed, match="cannot be called"):
        asyncio.run(start("unbuildable", user_file))


@pytest.mark.parametrize("name", ["SystemExit", "KeyboardInterrupt", "GeneratorExit"])
def test_a_reward_that_asks_to_stop_is_a_reward_that_raised(user_file: str, name: str) -> None:
    """`sys.exit()` in a reward ends neither the run nor its process."""

    async def test() -> None:
        async with scripted(user_file) as pool:
            pid = (await pool.score(value("pid"))).value
            result = await pool.score(value(name))

            assert (result.status, result.value) == (RewardStatus.RAISED, None)
            assert name in result.detail
            assert (await pool.score(value("pid"))).value == pid

    asyncio.run(test())


def test_a_process_that_ends_itself_well_has_crashed_all_the_same(user_file: str) -> None:
    """`os._exit(0)` gave no number: it is told as what it is, at once, and not as a timeout."""

    async def test() -> None:
        async with scripted(user_file) as pool:
            result = await pool.score(value("exit well"))

            assert result.status == RewardStatus.CRASHED
            assert "exit code 0" in result.detail

    asyncio.run(test())


def test_a_completion_whose_process_was_killed_is_scored_again_once(user_file: str, tmp_path: Path) -> None:
    """Whoever killed it (for want of memory, say) did not judge the completion; a second time it is the reward's."""
    once, twice = tmp_path / "once", tmp_path / "twice"
    once.mkdir()
    twice.mkdir()

    async def test() -> None:
        told: list[str] = []
        async with scripted(user_file, tell=told) as pool:
            good = await pool.score(value(f"killed {once}", times=1))
            bad = await pool.score(value(f"killed {twice}", times=2))
            pid = int((await pool.score(value("pid"))).value or 0)
            os.kill(pid, signal.SIGKILL)
            after = await pool.score(value("abc"))

        assert (good.status, after.value) == (RewardStatus.OK, 3.5)
        assert bad.status == RewardStatus.CRASHED
        assert "signal 9 (SIGKILL)" in bad.detail
        assert told == ["reward_process_replaced"] * 4

    asyncio.run(test())


FRAGILE = """
import os, signal
from pathlib import Path
from attrs import frozen
from areal_core.plugins.marks import reward

@frozen(kw_only=True)
class FragileConfig:
    folder: str
    deaths: int

@reward("fragile", config=FragileConfig)
def fragile(config):
    start = len(os.listdir(config.folder))
    Path(config.folder, str(start)).touch()
    if 1 <= start <= config.deaths:
        os.kill(os.getpid(), signal.SIGKILL)
    return lambda prompt, completion, completion_ids, stop_reason, row: float(start)
"""


@pytest.mark.parametrize(("deaths", "starts"), [(3, 5), (9, 6)])
def test_a_process_killed_while_it_starts_is_started_again(tmp_path: Path, deaths: int, starts: int) -> None:
    """A replacement that dies of the same kill does not cost the completion; there are five starts, not more."""
    file, folder = tmp_path / "fragile.py", tmp_path / "starts"
    file.write_text(FRAGILE)
    folder.mkdir()
    target = RewardTarget(name="fragile", options={"folder": str(folder), "deaths": deaths}, imports=(str(file),))

    async def test() -> float | None:
        pool = RewardPool(target)
        try:
            await pool.start()
            [process] = [
                child for child in psutil.Process().children() if "areal_local.rewards.process_main" in child.cmdline()
            ]
            process.kill()
            return (await pool.score(value("abc"))).value
        finally:
            await pool.close()

    if deaths < starts:
        assert asyncio.run(test()) == starts - 1
    else:
        with pytest.raises(RewardFailed, match="SIGKILL"):
            asyncio.run(test())
    assert len(list(folder.iterdir())) == starts


def test_what_a_reward_started_ends_with_its_process(user_file: str) -> None:
    """A reward that leaves processes behind leaves none behind the run."""

    async def test() -> None:
        async with scripted(user_file) as pool:
            started = [psutil.Process(int((await pool.score(value("spawn"))).value or 0)) for _ in range(3)]
        _, alive = psutil.wait_procs(started, timeout=20)

        assert not alive

    asyncio.run(test())


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_signal_to_the_group_of_a_run_does_not_reach_its_rewards(user_file: str) -> None:
    """SIGTERM to the process group stops a run like Ctrl-C: rewards are scored to the end.

    No process holds a named semaphore, which a killed run would leave behind.
    """

    def semaphores(process: int) -> set[str]:
        return {mapped.path for mapped in psutil.Process(process).memory_maps() if "/sem." in mapped.path}

    async def test() -> None:
        before = semaphores(os.getpid())
        async with scripted(user_file) as pool:
            pid = int((await pool.score(value("pid"))).value or 0)

            assert os.getpgid(pid) not in (os.getpgid(0), 0)
            assert os.getsid(pid) != os.getsid(0)
            assert semaphores(os.getpid()) <= before
            assert semaphores(pid) == set()

    asyncio.run(test())


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal")
def test_reward_processes_die_with_a_killed_controller(user_file: str) -> None:
    """After kill -9 of the controller no reward process is left, not even one that hangs, nor what a reward started."""
    program = f"""
import asyncio
from areal_core.contract.workflow import RewardInput
from areal_local.rewards.child import RewardTarget
from areal_local.rewards.pool import RewardPool

def ask(completion):
    return RewardInput(prompt="p", completion=completion, completion_ids=(), stop_reason="stop", row={{"bonus": 0}})

async def main():
    pool = RewardPool(RewardTarget(name="scripted", options={{}}, imports=({user_file!r},)), timeout_s=600)
    await pool.start()
    print(int((await pool.score(ask("pid"))).value), int((await pool.score(ask("spawn"))).value), flush=True)
    await pool.score(ask("hang"))

if __name__ == "__main__":
    asyncio.run(main())
"""
    path = Path(user_file).with_name("controller.py")
    path.write_text(program)
    with subprocess.Popen([sys.executable, str(path)], stdout=subprocess.PIPE, text=True) as controller:
        assert controller.stdout is not None
        children = [psutil.Process(int(pid)) for pid in controller.stdout.readline().split()]
        os.kill(controller.pid, signal.SIGKILL)
        controller.wait()
        _, alive = psutil.wait_procs(children, timeout=20)

    assert not alive
