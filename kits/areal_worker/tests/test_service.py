"""What a worker does with each call, with the weight transports and registry of a real process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from areal_core.contract import (
    EngineInfo,
    EngineStatus,
    Episode,
    Generation,
    GenerationRequest,
    InferenceSpec,
    ObjectiveSpec,
    Offer,
    Output,
    PauseMode,
    RankContext,
    Receipt,
    StopReason,
    TrainReport,
    TrainSpec,
    Trajectory,
    WeightManifest,
    WeightSink,
    WeightSource,
)
from areal_core.contract.batch import Batch
from areal_core.contract.errors import CapabilityError, FingerprintMismatch, WorkerError
from areal_core.contract.optional import ToolParse
from areal_core.plugins.registry import Registry
from areal_worker.service import InferenceHost, Place, TrainHost

RANK = RankContext(rank=0, world_size=1, local_rank=0, device="cpu", init_method="tcp://127.0.0.1:1")
OFFER = Offer(transport="memory", version=3, location={})
INFO = EngineInfo(engine="fake", engine_version="1", device="cpu", num_parameters=0, context_length=8)


class MemoryTransport:
    """A transport whose ends only write down what is done to them."""

    def __init__(self) -> None:
        self.log: list[str] = []

    def open(self, version: int) -> Offer:
        return OFFER

    def sink(self, offer: Offer) -> WeightSink:
        self.log.append(f"sink {offer.version}")
        return _End(self.log)

    def source(self, offer: Offer) -> WeightSource:
        self.log.append(f"source {offer.version}")
        return _End(self.log)

    def release(self, offer: Offer) -> None:
        self.log.append("release")

    def close(self) -> None:
        self.log.append("close transport")


class _End:
    bucket_bytes = 1
    manifest = WeightManifest(version=3, tensors=())

    def __init__(self, log: list[str]) -> None:
        self._log = log

    def begin(self, manifest: WeightManifest) -> None:
        pass

    def write(self, bucket: Mapping[str, torch.Tensor]) -> None:
        pass

    def finish(self) -> Receipt:
        return Receipt(version=3, num_bytes=0, seconds=0.0, fingerprints={})

    def abort(self) -> None:
        self._log.append("abort")

    def buckets(self) -> Iterator[Mapping[str, torch.Tensor]]:
        return iter(())

    def close(self) -> None:
        self._log.append("close source")


class FakeTrain:
    """Writes down every call and its thread; refuses version 13."""

    def __init__(self) -> None:
        self.version = 0
        self.log: list[str] = []
        self.threads: set[str] = set()
        self.hold = threading.Event()
        self.hold.set()

    def _note(self, what: str) -> None:
        self.hold.wait(10)
        self.log.append(what)
        self.threads.add(threading.current_thread().name)

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        self._note(f"start {spec.role}")
        return INFO

    def train_step(self, batch: Batch, objective: Any) -> TrainReport:
        self._note(f"step {batch.num_sequences} {objective.config}")
        return TrainReport(
            loss=0.0, grad_norm=0.0, lr=0.0, stepped=True, num_microbatches=1, num_tokens=batch.num_tokens, seconds=0.0
        )

    def forward(self, batch: Batch, outputs: frozenset[Output]) -> Batch:
        self._note(f"forward {sorted(outputs)}")
        return batch.with_tokens(**{name.value: torch.ones(batch.num_tokens) for name in outputs})

    def send_weights(self, sink: WeightSink | None, version: int) -> Receipt | None:
        self._note(f"send {version}")
        if version == 13:
            raise FingerprintMismatch("bytes differ")
        return None if sink is None else sink.finish()

    def save_weights(self, path: Path) -> None:
        self._note(f"weights {path}")

    def save_state(self, path: Path) -> None:
        self._note(f"save {path}")

    def load_state(self, path: Path) -> None:
        self._note(f"load {path}")

    def close(self) -> None:
        self._note("close")


class FakeInference:
    """Writes down every call; receiving version 13 fails."""

    def __init__(self) -> None:
        self.log: list[str] = []

    async def start(self, spec: InferenceSpec) -> EngineInfo:
        self.log.append("start")
        return INFO

    async def generate(self, request: GenerationRequest) -> Generation:
        self.log.append("generate")
        return Generation(output_ids=(), logprobs=(), version_spans=(), stop_reason=StopReason.STOP)

    async def pause(self, mode: PauseMode) -> None:
        self.log.append(f"pause {mode!r}")

    async def resume(self) -> None:
        self.log.append("resume")

    async def receive_weights(self, source: WeightSource, version: int) -> Receipt:
        self.log.append(f"receive {version}")
        if version == 13:
            raise FingerprintMismatch("bytes differ")
        return Receipt(version=version, num_bytes=0, seconds=0.0, fingerprints={})

    async def commit_weights(self, version: int) -> None:
        self.log.append(f"commit {version}")

    async def abort_weights(self) -> None:
        self.log.append("abort")

    async def status(self) -> EngineStatus:
        return EngineStatus(version=0, num_running=0, num_waiting=0, paused=False)

    async def close(self) -> None:
        self.log.append("close")


class _Built:
    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config


class StubRegistry(Registry):
    """Builds the parts given to it; writes down which files were added and how often an objective was built."""

    def __init__(self, engine: object, transport: MemoryTransport) -> None:
        super().__init__(environ={"AREAL_PLUGINS": ""})
        self._parts = {"train": engine, "infer": engine, "transport": transport}
        self.built: list[str] = []

    def build(self, role: str, name: str, options: Mapping[str, Any] | None = None, path: str = "") -> object:
        self.built.append(f"{role} {name}")
        return _Built(options or {}) if role == "objective" else self._parts[role]


def batch() -> Batch:
    trajectory = Trajectory(
        input_ids=torch.tensor([5, 9, 4]),
        loss_mask=torch.tensor([False, True, True]),
        logprobs=torch.zeros(3),
        versions=torch.tensor([-1, 0, 0], dtype=torch.int32),
        reward=1.0,
        stop_reason=StopReason.STOP,
    )
    return Batch.pack([Episode(trajectories=(trajectory, trajectory), task_id="t", group_id="g")])


class Train:
    """A train host with its fakes."""

    def __init__(self, engine: FakeTrain | None = None) -> None:
        self.engine, self.transport = engine or FakeTrain(), MemoryTransport()
        self.registry = StubRegistry(self.engine, self.transport)
        self.host = TrainHost(Place(worker="actor/0", backend="fake", registry=self.registry))

    async def started(self) -> Train:
        await self.host.call("start", (TrainSpec(role="actor", model_path="/m"), RANK))
        return self


def test_ranks_of_one_host_meet_in_the_folder_of_their_user_and_others_at_a_port() -> None:
    """Each time in another file or at another port, and without a folder always at a port."""

    async def run(folder: str, *on_one_host: bool) -> list[str]:
        host = TrainHost(Place(worker="actor/0", backend="fake", folder=folder))
        return [await host.call("rendezvous", ("127.0.0.1", *on_one_host)) for _ in range(2)]

    files = asyncio.run(run("/run/private", True))
    ports = [*asyncio.run(run("/run/private", False)), *asyncio.run(run("/run/private")), *asyncio.run(run("", True))]

    assert all(place.startswith("file:///run/private/") for place in files)
    assert all(place.startswith("tcp://127.0.0.1:") for place in ports)
    assert len({*files, *ports}) == 8


class InBackground(FakeTrain):
    """An engine that writes states meanwhile."""

    def begin_state(self, path: Path) -> None:
        self.log.append(f"begin_state {path}")

    def state_written(self) -> bool:
        return "finish_state" not in self.log

    def finish_state(self) -> None:
        self.log.append("finish_state")


def test_states_in_the_background_reach_an_engine_that_has_them_and_no_other() -> None:
    """The error names the claim and what to do."""

    async def run(train: Train) -> list[object]:
        made = await train.started()
        calls: list[tuple[str, tuple[object, ...]]] = [("begin_state", ("/s",)), ("state_written", ())]
        return [await made.host.call(method, args) for method, args in (*calls, ("finish_state", ()), *calls[1:])]

    able = Train(InBackground())
    assert asyncio.run(run(able)) == [None, True, None, False]
    assert able.engine.log[-2:] == ["begin_state /s", "finish_state"]
    with pytest.raises(
        CapabilityError, match=r"'fake' cannot write a state while it trains(.|\n)*checkpoint\.background"
    ):
        asyncio.run(run(Train()))


def test_train_calls_run_one_by_one_in_arrival_order_on_one_thread() -> None:
    """The event loop stays free while the engine works, and the engine sees one thread and no overlap."""

    async def run() -> tuple[list[str], set[str], int]:
        made = await Train().started()
        made.engine.hold.clear()
        calls = [asyncio.create_task(made.host.call("save_state", (f"/{number}",))) for number in range(20)]
        turns = 0
        while turns < 100:
            await asyncio.sleep(0)
            turns += 1
        made.engine.hold.set()
        await asyncio.gather(*calls)
        return made.engine.log, made.engine.threads, turns

    log, threads, turns = asyncio.run(run())

    assert ["start actor", *(f"save /{number}" for number in range(20))] == log
    assert (len(threads), turns) == (1, 100)
    assert threading.current_thread().name not in threads


def test_forward_returns_the_new_columns_and_nothing_else() -> None:
    """What the controller has already does not travel back."""

    async def run() -> Batch:
        made = await Train().started()
        result: Batch = await made.host.call("forward", (batch(), ["logprobs", "entropy"]))
        return result

    result = asyncio.run(run())

    assert {"tokens/logprobs", "tokens/entropy", "cu_seqlens"} == set(result.flat())
    assert result.cu_seqlens.tolist() == [0, 3, 6]


def test_an_objective_is_built_once_per_spec() -> None:
    """From its name and config, in the worker; the same spec is not built again."""

    async def run() -> Train:
        made = await Train().started()
        for clip in (0.1, 0.1, 0.2):
            await made.host.call("train_step", (batch(), ObjectiveSpec(name="ppo", config={"clip": clip})))
        return made

    made = asyncio.run(run())

    assert made.registry.built == ["train fake", "objective ppo", "objective ppo"]
    assert made.engine.log[1:] == ["step 2 {'clip': 0.1}", "step 2 {'clip': 0.1}", "step 2 {'clip': 0.2}"]


def test_only_the_rank_with_the_offer_gets_a_sink_and_a_failure_aborts_it() -> None:
    """Without an offer there is no sink; a raising engine leaves no half-written version."""

    async def run() -> tuple[list[object], list[str]]:
        made = await Train().started()
        receipts = [await made.host.call("send_weights", (offer, 3)) for offer in (None, OFFER)]
        with pytest.raises(FingerprintMismatch):
            await made.host.call("send_weights", (OFFER, 13))
        return receipts, made.transport.log

    receipts, log = asyncio.run(run())

    assert (receipts[0], receipts[1].version) == (None, 3)  # type: ignore[attr-defined]
    assert log == ["sink 3", "sink 3", "abort"]


def test_version_paths_and_close_reach_the_train_engine() -> None:
    """Strings become paths, close is idempotent and closes the transport, nothing works after it."""

    async def run() -> Train:
        made = await Train().started()
        await made.host.call("set_version", (5,))
        await made.host.call("save_weights", ("/w",))
        await made.host.call("load_state", ("/s",))
        await made.host.call("send_weights", (OFFER, 3))
        await made.host.call("close", ())
        await made.host.close()
        with pytest.raises(WorkerError, match="actor/0 has no engine"):
            await made.host.call("save_weights", ("/w",))
        return made

    made = asyncio.run(run())

    assert (made.engine.version, made.transport.log[-1]) == (5, "close transport")
    assert made.engine.log == ["start actor", "weights /w", "load /s", "send 3", "close"]


@pytest.mark.parametrize("method", ["version", "__init__", "_start", "call", "generate"])
def test_only_methods_of_the_table_can_be_called(method: str) -> None:
    """A name from the wire is never looked up on an object."""

    async def run() -> None:
        await Train().host.call(method, ())

    with pytest.raises(WorkerError, match=f"no method '{method}'"):
        asyncio.run(run())


def test_inference_calls_reach_the_engine_and_the_source_is_always_closed() -> None:
    """Each method once, pause by name; the source is closed after success and after failure."""

    async def run() -> tuple[list[str], list[str]]:
        engine, transport = FakeInference(), MemoryTransport()
        registry = StubRegistry(engine, transport)
        host = InferenceHost(Place(worker="rollout/0", backend="fake", registry=registry))
        await host.call("start", (InferenceSpec(model_path="/m"),))
        await host.call("generate", (GenerationRequest(request_id="r", input_ids=(1,)),))
        await host.call("pause", ("abort",))
        await host.call("receive_weights", (OFFER, 3))
        await host.call("commit_weights", (3,))
        await host.call("resume", ())
        with pytest.raises(FingerprintMismatch):
            await host.call("receive_weights", (OFFER, 13))
        await host.call("abort_weights", ())
        await host.call("close", ())
        await host.close()
        return engine.log, transport.log

    engine, transport = asyncio.run(run())

    wanted = ["start", "generate", f"pause {PauseMode.ABORT!r}", "receive 3", "commit 3", "resume", "receive 13"]
    assert [*wanted, "abort", "close"] == engine
    assert transport == ["source 3", "close source", "source 3", "close source", "close transport"]


class FakeExtended(FakeInference):
    """Has every optional ability of an inference engine."""

    async def sleep(self) -> None:
        self.log.append("sleep")

    async def wake(self) -> None:
        self.log.append("wake")

    async def score(self, input_ids: tuple[int, ...], temperature: float) -> tuple[float, ...]:
        self.log.append(f"score {list(input_ids)} {temperature}")
        return (0.0, -1.5)

    async def parse_tool_calls(self, text: str, tools: Sequence[Mapping[str, Any]]) -> ToolParse:
        self.log.append(f"parse {text!r} {tools}")
        return ToolParse(content=text)

    async def load_adapter(self, name: str, path: Path, version: int) -> None:
        self.log.append(f"load {name} {path!r} {version}")

    async def unload_adapter(self, name: str) -> None:
        self.log.append(f"unload {name}")


OPTIONAL = {
    "sleep": (),
    "wake": (),
    "score": ((3, 4), 0.5),
    "parse_tool_calls": ("no call", [{"type": "function"}]),
    "load_adapter": ("a", "/adapters/a", 2),
    "unload_adapter": ("a",),
}


async def ask_for_everything_optional(engine: FakeInference) -> list[object]:
    """Return what each optional call gave: its result, or the error it raised."""
    registry = StubRegistry(engine, MemoryTransport())
    host = InferenceHost(Place(worker="rollout/0", backend="fake", registry=registry))
    await host.call("start", (InferenceSpec(model_path="/m"),))
    calls = (host.call(method, arguments) for method, arguments in OPTIONAL.items())
    answers = await asyncio.gather(*calls, return_exceptions=True)
    await host.close()
    return list(answers)


def test_optional_calls_reach_an_engine_that_has_them() -> None:
    """Scores come back as a list, a path arrives as a path."""
    engine = FakeExtended()

    answers = asyncio.run(ask_for_everything_optional(engine))

    assert answers == [None, None, [0.0, -1.5], ToolParse(content="no call"), None, None]
    wanted = ["start", "sleep", "wake", "score [3, 4] 0.5", "parse 'no call' [{'type': 'function'}]"]
    assert [*wanted, f"load a {Path('/adapters/a')!r} 2", "unload a", "close"] == engine.log


def test_optional_calls_are_refused_for_an_engine_that_has_them_not() -> None:
    """The engine is never asked; the error names backend and claim."""
    engine = FakeInference()

    answers = asyncio.run(ask_for_everything_optional(engine))

    assert all(isinstance(answer, CapabilityError) for answer in answers), answers
    assert all("'fake'" in str(answer) and "fix: choose a backend that claims" in str(answer) for answer in answers)
    assert engine.log == ["start", "close"]
