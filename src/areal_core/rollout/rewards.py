"""Rewards, each in a process that can be killed.

Knows: how to ask a pool of processes for a score, and every way that can end.
Does not know: what the function computes; the processes find it by name (`reward_child`).
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
from typing import Any

from pebble import ProcessExpired, ProcessPool

from areal_core.contract import errors
from areal_core.contract.workflow import RewardInput, RewardResult, RewardStatus
from areal_core.rollout import reward_child
from areal_core.rollout.reward_child import RewardTarget


class RewardPool:
    """Score completions in `workers` processes, each call within `timeout_s` seconds.

    A call that hangs has its process killed and another one started; the others are not disturbed.
    """

    def __init__(
        self, target: RewardTarget, *, workers: int = 1, timeout_s: float = 15.0, start_timeout_s: float = 60.0
    ) -> None:
        """Start nothing yet."""
        self.target = target
        self._workers = workers
        self._timeout_s = timeout_s
        self._start_timeout_s = start_timeout_s
        self._pool: Any = None  # Any: pebble is not typed

    async def start(self) -> None:
        """Start the processes and resolve the function, so that its errors come before training does.

        Raises:
            ConfigError, PluginError: the name, an option or an imported file is wrong.
            RewardFailed: the function cannot be built, or not within the start timeout.
        """
        if self._pool is not None:
            return
        self._pool = ProcessPool(
            max_workers=self._workers,
            context=multiprocessing.get_context("spawn"),
            initializer=reward_child.start,
            initargs=(self.target, os.getpid()),
        )
        try:
            error = await self._call(reward_child.check, (), self._start_timeout_s)
        except (TimeoutError, ProcessExpired, RuntimeError) as exc:
            await self.close()
            raise errors.RewardFailed(
                f"the process of reward {self.target.name!r} did not start",
                why=f"{type(exc).__name__}: {exc}",
                fix="build it alone in a Python shell; importing it must not hang or exit",
            ) from exc
        except BaseException:
            await self.close()
            raise
        if error is not None:
            await self.close()
            kind, what, why, fix = error
            raise getattr(errors, kind)(what, why=why, fix=fix)

    async def score(self, value: RewardInput) -> RewardResult:
        """Score one completion. A bad function never raises here: the result says how it ended."""
        assert self._pool is not None, "start runs first"
        try:
            result = await self._call(reward_child.score, (value,), self._timeout_s)
        except TimeoutError:
            return self._not_ok(RewardStatus.TIMEOUT, f"no answer within {self._timeout_s:g} s; its process was killed")
        except ProcessExpired as exc:
            return self._not_ok(RewardStatus.CRASHED, f"its process ended with exit code {exc.exitcode}")
        assert isinstance(result, RewardResult)
        return result

    async def close(self) -> None:
        """Kill the processes and wait until they are gone; calls in flight are cancelled. Idempotent."""
        pool, self._pool = self._pool, None
        if pool is None:
            return
        pool.stop()
        await asyncio.to_thread(pool.join)

    async def _call(self, function: Any, arguments: tuple[Any, ...], timeout_s: float) -> Any:
        """Run a function in the pool. Any: pebble is not typed. Cancelling cancels the call, by killing its process."""
        return await asyncio.wrap_future(self._pool.schedule(function, args=arguments, timeout=timeout_s))

    def _not_ok(self, status: str, detail: str) -> RewardResult:
        return RewardResult(value=None, status=status, detail=f"reward {self.target.name!r}: {detail}")


def require_ok(result: RewardResult, subject: str) -> float:
    """Return the value of a reward that is ok. Used by workflows: a reward that is not is never a zero.

    Raises:
        RewardFailed: names the subject (`episode train/0/3`), how the function ended, and its detail.
    """
    if result.status == RewardStatus.OK and result.value is not None:
        return result.value
    raise errors.RewardFailed(
        f"the reward of {subject} is {result.status}",
        why=result.detail,
        fix="return a finite number for every completion, within rollout.reward.timeout_s",
    )
