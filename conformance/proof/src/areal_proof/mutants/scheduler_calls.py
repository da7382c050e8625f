"""Broken schedulers whose calls sin: replies, deadlines, errors, keys.

Knows: how a handle or a worker of a scheduler in order is bent.
Does not know: how it is caught.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any

import attrs

from areal_core.contract.errors import ArealError, RemoteError, WorkerDied, WorkerError, WorkerTimeout
from areal_core.contract.inference import Generation, GenerationRequest
from areal_core.contract.scheduler import Job, Worker
from areal_local.scheduler.local_scheduler import LocalScheduler
from areal_local.scheduler.rpc import RpcClient
from areal_proof.mutants import mutant
from areal_proof.mutants.scheduler_workers import receive_pickled, send_pickled
from areal_proof.second.scheduler import SecondScheduler, SecondSchedulerConfig, SecondWorker


class _Handle:
    """A worker's handle that can be bent."""

    def __init__(self, worker: Worker) -> None:
        self.id, self.host, self._worker = worker.id, worker.host, worker

    async def call(self, method: str, *args: Any, timeout_s: float) -> Any:
        return await self._worker.call(method, *args, timeout_s=timeout_s)


class _Bent(LocalScheduler):
    handle: type[_Handle]

    async def submit(self, job: Job) -> Sequence[Worker]:
        return tuple(self.handle(worker) for worker in await super().submit(job))


class _Sinning(SecondScheduler):
    """The second scheduler with workers that sin in their own process."""

    def __init__(self, config: SecondSchedulerConfig) -> None:
        super().__init__(config)
        self.worker_class = type(
            "SinningWorker",
            (SecondWorker,),
            {"command": ("-P", "-m", "areal_proof.mutants.scheduler_workers", *self.sin)},
        )

    sin: tuple[str, ...] = ()


@mutant("scheduler/second", killers=("scheduler.calls.at_once", "scheduler.calls.late_reply"), row="control-messages",
        incident="NeMo-RL#2512")  # fmt: skip
class RepliesInTurn(SecondScheduler):
    """Gives each reply to the call that has waited longest, whoever's it is."""

    class worker_class(SecondWorker):
        def _take(self, message: Any) -> None:
            if len(message) == 3 and self._calls:
                message = (message[0], next(iter(self._calls)), message[2])
            super()._take(message)


@mutant("scheduler/local", killers=("scheduler.calls.late_reply",), row="control-messages")
class NumbersAgain(LocalScheduler):
    """Uses the number of a call that timed out for the next one, which then gets the late reply."""

    async def submit(self, job: Job) -> Sequence[Worker]:
        workers = await super().submit(job)
        for worker in workers:
            worker.__class__ = _SameNumber
        return workers


class _SameNumber(RpcClient):
    async def call(self, method: str, *args: Any, timeout_s: float) -> Any:
        number = next(self._numbers)
        self._numbers = itertools.count(number)
        try:
            return await super().call(method, *args, timeout_s=timeout_s)
        except WorkerTimeout:
            self._numbers = itertools.count(number)
            raise


@mutant("scheduler/local", killers=("scheduler.calls.two_workers",))
class OneCallAtATime(_Bent):
    """Lets only one call of the whole run be at work."""

    class handle(_Handle):
        lock: asyncio.Lock | None = None

        async def call(self, method: str, *args: Any, timeout_s: float) -> Any:
            OneCallAtATime.handle.lock = OneCallAtATime.handle.lock or asyncio.Lock()
            async with OneCallAtATime.handle.lock:
                return await super().call(method, *args, timeout_s=timeout_s)

    async def submit(self, job: Job) -> Sequence[Worker]:
        OneCallAtATime.handle.lock = None
        return await super().submit(job)


@mutant("scheduler/local", killers=("scheduler.calls.deadline",), row="dead-peer", incident="verl#7155")
class CallsWaitForEver(_Bent):
    """Waits for an answer as long as it takes."""

    class handle(_Handle):
        async def call(self, method: str, *args: Any, timeout_s: float) -> Any:
            return await super().call(method, *args, timeout_s=3600.0)


@mutant("scheduler/local", killers=("scheduler.calls.deadline", "scheduler.silence.calls"))
class SlowIsDead(_Bent):
    """Takes a worker that does not answer in time for dead."""

    class handle(_Handle):
        async def call(self, method: str, *args: Any, timeout_s: float) -> Any:
            try:
                return await super().call(method, *args, timeout_s=timeout_s)
            except WorkerTimeout as error:
                raise WorkerDied(error.what, why=error.why) from error


@mutant("scheduler/second", killers=("scheduler.calls.cancelled",))
class CancelStaysHere(SecondScheduler):
    """Forgets a call that was given up, and lets the worker go on with it."""

    class worker_class(SecondWorker):
        def _send(self, message: tuple[Any, ...]) -> None:
            if message[0] != "cancel":
                super()._send(message)


@mutant("scheduler/local", killers=("scheduler.calls.values",))
class TuplesBecomeLists(_Bent):
    """Sends plain data as JSON would: what left as a tuple arrives as a list."""

    class handle(_Handle):
        async def call(self, method: str, *args: Any, timeout_s: float) -> Any:
            result = await super().call(method, *args, timeout_s=timeout_s)
            if isinstance(result, Generation) and type(result.token_extras.get("value")) is tuple:
                result.token_extras["value"] = list(result.token_extras["value"])  # type: ignore[index]
            return result


@mutant("scheduler/local", killers=("scheduler.calls.values",))
class FieldsForgotten(_Bent):
    """Sends requests as an older contract knows them: the name of the adapter is lost."""

    class handle(_Handle):
        async def call(self, method: str, *args: Any, timeout_s: float) -> Any:
            result = await super().call(method, *args, timeout_s=timeout_s)
            value = result.token_extras.get("value") if isinstance(result, Generation) else None
            if isinstance(value, GenerationRequest):
                result.token_extras["value"] = attrs.evolve(value, adapter="")
            return result


@mutant("scheduler/local", killers=("scheduler.calls.tensors",))
class SinglePrecision(_Bent):
    """Sends double precision tensors as single precision."""

    class handle(_Handle):
        async def call(self, method: str, *args: Any, timeout_s: float) -> Any:
            result = await super().call(method, *args, timeout_s=timeout_s)
            value = result.token_extras.get("value") if isinstance(result, Generation) else None
            if str(getattr(value, "dtype", "")) == "torch.float64":
                result.token_extras["value"] = value.float()  # type: ignore[union-attr]
            return result


@mutant("scheduler/local", killers=("scheduler.calls.methods",))
class PauseAlwaysKeeps(_Bent):
    """Leaves the argument of pause at its usual value."""

    class handle(_Handle):
        async def call(self, method: str, *args: Any, timeout_s: float) -> Any:
            given = ("keep",) if method == "pause" else args
            return await super().call(method, *given, timeout_s=timeout_s)


@mutant("scheduler/second", killers=("scheduler.calls.unknown_method",))
class CallsAnything(_Sinning):
    """Calls whatever attribute of the engine a name leads to, and nothing where there is none."""

    sin = ("calls-anything",)


@mutant("scheduler/local", killers=("scheduler.errors.contract", "scheduler.errors.own_kind"))
class EveryErrorIsRemote(_Bent):
    """Turns every error of an engine into RemoteError."""

    class handle(_Handle):
        async def call(self, method: str, *args: Any, timeout_s: float) -> Any:
            try:
                return await super().call(method, *args, timeout_s=timeout_s)
            except ArealError as error:
                raise RemoteError(error.what, why=error.why, fix=error.fix) from error


@mutant("scheduler/local", killers=("scheduler.errors.contract",))
class FixIsLost(_Bent):
    """Carries what happened and why, and drops the fix."""

    class handle(_Handle):
        async def call(self, method: str, *args: Any, timeout_s: float) -> Any:
            try:
                return await super().call(method, *args, timeout_s=timeout_s)
            except ArealError as error:
                raise type(error)(error.what, why=error.why) from error


@mutant("scheduler/second", killers=("scheduler.errors.own_kind",))
class OwnKindsAreRemote(_Sinning):
    """Knows only the contract's own classes, and takes a plugin's kind of one for somebody else's exception."""

    sin = ("own-kinds-are-remote",)


@mutant("scheduler/local", killers=("scheduler.errors.foreign",))
class TracebackStaysThere(_Bent):
    """Tells that an engine raised, and leaves the traceback in the worker."""

    class handle(_Handle):
        async def call(self, method: str, *args: Any, timeout_s: float) -> Any:
            try:
                return await super().call(method, *args, timeout_s=timeout_s)
            except RemoteError as error:
                raise RemoteError(error.what) from None


@mutant("scheduler/local", killers=("scheduler.errors.cancelled_itself",))
class EngineCancelsCaller(_Bent):
    """Lets an engine's CancelledError cancel the caller."""

    class handle(_Handle):
        async def call(self, method: str, *args: Any, timeout_s: float) -> Any:
            try:
                return await super().call(method, *args, timeout_s=timeout_s)
            except RemoteError as error:
                if "raised CancelledError" in error.what:
                    raise asyncio.CancelledError from error
                raise


@mutant("scheduler/local", killers=("scheduler.errors.one_call_only",))
class OneFailsAll(LocalScheduler):
    """Ends every call in flight when one of them fails."""

    async def submit(self, job: Job) -> Sequence[Worker]:
        workers = await super().submit(job)
        for worker in workers:
            worker.__class__ = _Contagious
        return workers


class _Contagious(RpcClient):
    async def call(self, method: str, *args: Any, timeout_s: float) -> Any:
        try:
            return await super().call(method, *args, timeout_s=timeout_s)
        except ArealError as error:
            self.fail(error, final=False)
            self.recover()
            raise


@mutant("scheduler/second", killers=("scheduler.errors.not_unpickled",))
class CallsArePickled(_Sinning):
    """Sends calls and results as pickles."""

    sin = ("pickles",)

    def __init__(self, config: SecondSchedulerConfig) -> None:
        super().__init__(config)
        self.worker_class = type("PicklingWorker", (_Pickling, self.worker_class), {})


class _Pickling(SecondWorker):
    async def _read(self, reader: asyncio.StreamReader) -> Any:
        return await receive_pickled(reader)

    def _write(self, writer: asyncio.StreamWriter, message: tuple[Any, ...]) -> None:
        send_pickled(writer, message)


@mutant("scheduler/second", killers=("scheduler.access.loopback",))
class WorkersListenEverywhere(_Sinning):
    """Binds a port of every worker to all addresses of the machine."""

    sin = ("listens-everywhere",)


@mutant("scheduler/second", killers=("scheduler.access.stranger",))
class ServesStrangers(_Sinning):
    """Takes calls from whoever connects."""

    sin = ("serves-strangers",)


@mutant("scheduler/second", killers=("scheduler.access.secrets",))
class KeyInArguments(_Sinning):
    """Hands the run's key to workers as an argument, for everybody to read in the process list."""

    sin = ("key-in-arguments", "--key=7Fq0zWb2LxY9mKd4RtNs8VhJc3PgAe6U")


@mutant("scheduler/local", killers=("scheduler.access.secrets",))
class KeyInEnvironment(LocalScheduler):
    """Hands the run's key to workers in their environment."""

    async def submit(self, job: Job) -> Sequence[Worker]:
        self._environ["AREAL_RPC_KEY"] = self._keys.secret
        return await super().submit(job)


@mutant("scheduler/second", killers=("scheduler.hosts.train",))
class CallsOverlap(_Sinning):
    """Runs calls to a training rank in several threads at once."""

    sin = ("overlaps",)


@mutant("scheduler/second", killers=("scheduler.hosts.train",))
class CallsOvertake(_Sinning):
    """Lets a later call to a training rank overtake an earlier one."""

    sin = ("last-in-first-out",)


@mutant("scheduler/second", killers=("scheduler.submit.start_cheap",))
class WorkersLoadTorch(_Sinning):
    """Imports torch in every worker, whatever it hosts."""

    sin = ("loads-torch",)


@mutant("scheduler/local", killers=("scheduler.submit.wrong_backend", "scheduler.submit.engine_fails"))
class StartFailed(_Bent):
    """Says of any failed start only that it failed."""

    class handle(_Handle):
        async def call(self, method: str, *args: Any, timeout_s: float) -> Any:
            try:
                return await super().call(method, *args, timeout_s=timeout_s)
            except ArealError as error:
                if method == "start":
                    raise WorkerError(f"{self.id} could not be started") from error
                raise
