"""Broken schedulers whose calls are faulty: replies, deadlines, errors, keys.

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
from areal_proof.mutants.rows import Original, after, breaking, catches, row, then
from areal_proof.mutants.scheduler_workers import receive_pickled, send_pickled
from areal_proof.second.scheduler import SecondScheduler, SecondSchedulerConfig, SecondWorker

breaks_local = breaking("scheduler/local", LocalScheduler)
breaks_second = breaking("scheduler/second", SecondScheduler, part=("worker_class", SecondWorker))


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


class _FaultyWorkers(SecondScheduler):
    """The second scheduler with workers that are faulty in their own process."""

    def __init__(self, config: SecondSchedulerConfig) -> None:
        super().__init__(config)
        self.worker_class = type(
            "FaultyWorker",
            (SecondWorker,),
            {"command": ("-P", "-m", "areal_proof.mutants.scheduler_workers", *self.fault)},
        )

    fault: tuple[str, ...] = ()


@breaks_local("submit", "scheduler.calls.late_reply", row="control-messages")
async def NumbersAgain(original: Original) -> Any:
    """Uses the number of a call that timed out for the next one, which then gets the late reply."""
    workers = await original()
    for worker in workers:
        worker.__class__ = _SameNumber
    return workers


class _SameNumber(RpcClient):
    async def call(self, method: str, *args: Any, timeout_s: float) -> Any:
        number = next(self.numbers)
        self.numbers = itertools.count(number)
        try:
            return await super().call(method, *args, timeout_s=timeout_s)
        except WorkerTimeout:
            self.numbers = itertools.count(number)
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


SECOND_ROWS = breaks_second.rows(
    row("RepliesInTurn", "Gives each reply to the call that has waited longest, whoever's it is.",
        "scheduler.calls.at_once", "scheduler.calls.late_reply", incident="NeMo-RL#2512", row="control-messages",
        take=lambda original, self, message: original((message[0], next(iter(self.calls)), message[2])
            if len(message) == 3 and self.calls else message)),
    row("CancelStaysHere", "Forgets a call that was given up, and lets the worker go on with it.",
        "scheduler.calls.cancelled",
        send=lambda original, message: original(message) if message[0] != "cancel" else None),
)  # fmt: skip


breaks = breaking("scheduler/local", _Bent, part=("handle", _Handle))


@breaks("call", "scheduler.calls.values")
async def TuplesBecomeLists(original: Original) -> Any:
    """Sends plain data as JSON would: what left as a tuple arrives as a list."""
    result = await original()
    if isinstance(result, Generation) and type(result.token_extras.get("value")) is tuple:
        result.token_extras["value"] = list(result.token_extras["value"])  # type: ignore[index]
    return result


@breaks("call", "scheduler.calls.values")
async def FieldsForgotten(original: Original) -> Any:
    """Sends requests as an older contract knows them: the name of the adapter is lost."""
    result = await original()
    value = result.token_extras.get("value") if isinstance(result, Generation) else None
    if isinstance(value, GenerationRequest):
        result.token_extras["value"] = attrs.evolve(value, adapter="")
    return result


@breaks("call", "scheduler.calls.owned")
async def RepliesAreShared(original: Original, self: _Handle) -> Any:
    """Gives the tensor of an earlier reply again where a later one looks the same."""
    result = await original()
    values: Any = result.token_extras.get("value") if isinstance(result, Generation) else None
    if isinstance(values, list) and hasattr(values[0], "untyped_storage"):
        kept: Any = vars(self).setdefault("kept", values[0])
        if kept.shape == values[0].shape and kept.equal(values[0]):
            result.token_extras["value"] = [kept, *values[1:]]
        self.kept = values[0]  # type: ignore[attr-defined]
    return result


@breaks("call", "scheduler.calls.owned", "scheduler.calls.tensors")
async def RoundOnesTakeTheNext(original: Original) -> Any:
    """Cuts large tensors into pieces, and takes the one behind a tensor of whole pieces for a part of it."""
    result = await original()
    values: Any = result.token_extras.get("value") if isinstance(result, Generation) else None
    if isinstance(values, list):
        for number, one in enumerate(values[:-1]):
            if getattr(one, "nbytes", 0) and one.nbytes % 65_536 == 0:
                values[number + 1] = one
    return result


@breaks("call", "scheduler.calls.tensors")
async def SinglePrecision(original: Original) -> Any:
    """Sends double precision tensors as single precision."""
    result = await original()
    value = result.token_extras.get("value") if isinstance(result, Generation) else None
    if str(getattr(value, "dtype", "")) == "torch.float64":
        result.token_extras["value"] = value.float()  # type: ignore[union-attr]
    return result


@breaks("call", "scheduler.hosts.train")
async def LargeCallsFirst(original: Original, args: tuple[Any, ...]) -> Any:
    """Sends large calls at once, and small ones together at the end of the turn."""
    if not any(isinstance(one, str) and len(one) > 32_768 for one in args):
        await asyncio.sleep(0)
    return await original()


@breaks_local("submit", "scheduler.errors.one_call_only")
async def OneFailsAll(original: Original) -> Any:
    """Ends every call in flight when one of them fails."""
    workers = await original()
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


class _Pickling(SecondWorker):
    async def read(self, reader: asyncio.StreamReader) -> Any:
        return await receive_pickled(reader)

    def write(self, writer: asyncio.StreamWriter, message: tuple[Any, ...]) -> None:
        send_pickled(writer, message)


@breaks_local("submit", "scheduler.access.secrets")
async def KeyInEnvironment(original: Original, self: LocalScheduler) -> Any:
    """Hands the run's key to workers in their environment."""
    self.environ["AREAL_RPC_KEY"] = self.keys.secret
    return await original()


breaks_workers = breaking("scheduler/second", _FaultyWorkers)
FAULTY_WORKER_ROWS = breaks_workers.rows(
    row("CallsAnything", "Calls whatever attribute of the engine a name leads to, and nothing where there is none.",
        "scheduler.calls.unknown_method", fault=("calls-anything",)),
    row("OwnKindsAreRemote",
        "Knows only the contract's own classes, and takes a plugin's kind of one for somebody else's exception.",
        "scheduler.errors.own_kind", fault=("own-kinds-are-remote",)),
    row("CallsArePickled", "Sends calls and results as pickles.", "scheduler.errors.not_unpickled", fault=("pickles",),
        __init__=then(lambda self: setattr(self, "worker_class", type("PicklingWorker", (_Pickling, self.worker_class),
            {})))),
    row("WorkersListenEverywhere", "Binds a port of every worker to all addresses of the machine.",
        "scheduler.access.loopback", fault=("listens-everywhere",)),
    row("ServesStrangers", "Takes calls from whoever connects.", "scheduler.access.stranger",
        fault=("serves-strangers",)),
    row("WelcomesEverybody", "Keeps every connection open that strangers make, until it can open no file of its own.",
        "scheduler.access.crowd", fault=("welcomes-everybody",)),
    row("HearsStrangersOut", "Reads whatever strangers send, to its end.", "scheduler.access.stranger",
        fault=("hears-out",)),
    row("CountsWhoLeft", "Lets 32 strangers in, and then nobody, though they have left.", "scheduler.access.crowd",
        fault=("counts-who-left",)),
    row("CollectivesAnywhere", "Leaves collectives to listen at whichever interface they find.",
        "scheduler.access.collectives", fault=("any-interface",)),
    row("InterfaceOverAll", "Sets the interface of collectives over the one that the job named itself.",
        "scheduler.env.over_all", fault=("interfaces-over-all",)),
    row("OuterFrames", "Tells the first frames of a traceback, and not where an engine failed.",
        "scheduler.errors.foreign", fault=("outer-frames",)),
    row("ObjectiveByName", "Takes an objective for the one before it if it has the same name.",
        "scheduler.hosts.objective", fault=("objective-by-name",)),
    row("SourcesStayOpen", "Keeps what replicas received their weights from.", "scheduler.hosts.weights",
        fault=("keeps-sources",)),
    row("TransportsStayOpen", "Ends workers without a word to their transports.", "scheduler.hosts.weights",
        fault=("keeps-transports",)),
    row("OneEndAtATime", "Answers no call while a transport waits for its other end.", "scheduler.hosts.waits",
        fault=("opens-in-the-loop",)),
    row("LackingDoesNothing", "Does nothing where an engine lacks a method, and says nothing of it.",
        "scheduler.hosts.lacking", fault=("does-nothing-instead",)),
    row("KeyInArguments", "Hands the run's key to workers as an argument, for everybody to read in the process list.",
        "scheduler.access.secrets", fault=("key-in-arguments", "--key=7Fq0zWb2LxY9mKd4RtNs8VhJc3PgAe6U")),
    row("CallsOverlap", "Runs calls to a training rank in several threads at once.", "scheduler.hosts.train",
        fault=("overlaps",)),
    row("CallsOvertake", "Lets a later call to a training rank overtake an earlier one.", "scheduler.hosts.train",
        fault=("last-in-first-out",)),
    row("WorkersLoadTorch", "Imports torch in every worker, whatever it hosts.", "scheduler.submit.start_cheap",
        fault=("loads-torch",)),
)  # fmt: skip


ROWS = breaks.rows(
    row("CallsWaitForEver", "Waits for an answer as long as it takes.", "scheduler.calls.deadline",
        incident="verl#7155", row="dead-peer",
        call=lambda original, method, args: original(method, *args, timeout_s=3600.0)),
    row("SlowIsDead", "Takes a worker that does not answer in time for dead.", "scheduler.calls.deadline",
        "scheduler.silence.calls", call=catches(WorkerTimeout, lambda error: WorkerDied(error.what, why=error.why))),
    row("PauseAlwaysKeeps", "Leaves the argument of pause at its usual value.", "scheduler.calls.methods",
        call=lambda original, method, args, timeout_s: original(method, *(("keep",) if method == "pause" else args),
            timeout_s=timeout_s)),
    row("ScoresAtOne", "Leaves the temperature of score at 1.", "scheduler.calls.optional",
        call=lambda original, method, args, timeout_s: original(method,
            *((args[0], 1.0) if method == "score" else args), timeout_s=timeout_s)),
    row("NothingToSay", "Tells nothing of whether a state was written.",
        "scheduler.hosts.optional", call=after(lambda result, method: None if method == "state_written" else result)),
    row("OneFileForEverybody", "Names the same file to every group of ranks on its host.",
        "scheduler.rendezvous.worker",
        call=after(lambda result, method: "file:///ranks" if method == "rendezvous" and result.startswith("file:")
            else result)),
    row("EveryErrorIsRemote", "Turns every error of an engine into RemoteError.", "scheduler.errors.contract",
        "scheduler.errors.own_kind",
        call=catches(ArealError, lambda error: RemoteError(error.what, why=error.why, fix=error.fix))),
    row("FixIsLost", "Carries what happened and why, and drops the fix.", "scheduler.errors.contract",
        call=catches(ArealError, lambda error: type(error)(error.what, why=error.why))),
    row("EngineCancelsCaller", "Lets an engine's CancelledError cancel the caller.",
        "scheduler.errors.cancelled_itself",
        call=catches(RemoteError, lambda error: asyncio.CancelledError if "raised CancelledError" in error.what
            else error)),
    row("StartFailed", "Says of any failed start only that it failed.", "scheduler.submit.wrong_backend",
        "scheduler.submit.engine_fails",
        call=catches(ArealError, lambda error, self, method: WorkerError(f"{self.id} could not be started")
            if method == "start" else error)),
    row("TracebackStaysThere", "Tells that an engine raised, and leaves the traceback in the worker.",
        "scheduler.errors.foreign", call=catches(RemoteError, lambda error: RemoteError(error.what))),
)  # fmt: skip
