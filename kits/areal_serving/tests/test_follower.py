"""A server over several hosts: one part serves, the others hold theirs; weights are staged beside each of them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path

import attrs
import psutil
import pytest

from areal_core.contract.errors import CapabilityError, GenerationFailed, VersionRegressed, WeightSyncError
from areal_core.contract.inference import InferenceSpec, PauseMode, ReplicaPart
from areal_core.contract.train import LoraSpec
from areal_serving.dialect import Command, Launch
from areal_torch.testing.serving import ask

from .toy import ToyDialect, ToyEngine, kill_server, other_weights

pytestmark = pytest.mark.usefixtures("nothing_left")


class SpanningDialect(ToyDialect):
    """A toy whose parts that do not lead are processes that wait."""

    def command(self, launch: Launch) -> Command:
        whole = super().command(launch)
        if launch.spec.part.leads:
            return whole
        return Command(argv=[sys.executable, "-c", "import time; time.sleep(600)"])


def relative(path: Path) -> str:
    return os.path.relpath(path)


def part(rank: int) -> ReplicaPart:
    return ReplicaPart(rank=rank, num_hosts=2, host="127.0.0.1", leader="tcp://127.0.0.1:1", key="k")


@contextlib.asynccontextmanager
async def two(model: Path):
    """Start both parts of one server; the model is named from this process's folder, not from theirs."""
    engines = [ToyEngine(SpanningDialect()) for _ in range(2)]
    spec = InferenceSpec(model_path=relative(model), layout={"t": 2}, max_concurrent=4)
    try:
        for rank, engine in enumerate(engines):
            await engine.start(attrs.evolve(spec, part=part(rank)))
        yield engines
    finally:
        for engine in engines:
            await engine.close()


async def lost(engine: ToyEngine) -> GenerationFailed:
    """Ask how it is until it says that it is lost."""
    while True:
        try:
            await engine.status()
        except GenerationFailed as error:
            return error
        await asyncio.sleep(0.01)


def folder_of(engine: ToyEngine) -> Path:
    """Return where a part's process runs."""
    return engine.toy.launches[0].folder


def staged(engine: ToyEngine) -> list[str]:
    """Return the names of the versions that lie there."""
    return sorted(path.name for path in folder_of(engine).glob("v*"))


def test_every_part_stages_a_version_under_the_same_name_where_its_process_runs(model):
    """The leader tells the ranks of all hosts one name; each finds it in a folder of its own, with the same bytes."""

    async def run():
        async with two(model) as engines:
            kept = []
            for version in (1, 2):
                weights = other_weights(model, float(version))
                await asyncio.gather(*(e.receive_weights(weights.offer(version), version) for e in engines))
                kept.append([staged(e) for e in engines])
                texts = [(folder_of(e) / kept[-1][0][-1] / "model.safetensors").read_bytes() for e in engines]
                for engine in engines:
                    await engine.commit_weights(version)
                assert texts[0] == texts[1]
            assert (await engines[0].facts())["argv"][-1] == str(model.resolve())
            assert psutil.Process((await engines[0].facts())["pid"]).cwd() == str(folder_of(engines[0]))
            told = (await engines[0].status()).version, (await engines[1].status()).version
            return kept, [staged(e) for e in engines], told, await engines[0].story()

    kept, after, told, story = asyncio.run(run())

    assert all(names[0] == names[1] for names in kept)
    assert [len(names[0]) for names in kept] == [1, 2], "the version served stays until the next one serves"
    assert after[0] == after[1] == kept[1][0][1:]
    assert told == (2, 2)
    assert [word for word in story if word in ("prove", "load 1", "load 2")] == ["prove", "load 1", "prove", "load 2"]


def test_the_same_version_again_takes_the_place_of_the_one_held(model):
    """Under the same name if its bytes are the same; what an aborted transfer left is gone everywhere."""

    async def run():
        async with two(model) as engines:
            seen = []
            for added in (1.0, 1.0, 2.0):
                weights = other_weights(model, added)
                for engine in engines:
                    await engine.receive_weights(weights.offer(1), 1)
                file = folder_of(engines[1]) / staged(engines[1])[0] / "model.safetensors"
                seen.append(([staged(e) for e in engines], len(file.read_bytes())))
            for engine in engines:
                await engine.abort_weights()
                with pytest.raises(WeightSyncError, match="version 1 cannot be committed"):
                    await engine.commit_weights(1)
            return seen, [staged(e) for e in engines]

    seen, after = asyncio.run(run())

    assert [first for (first, second), size in seen if first == second and size] == [names[0] for names, _ in seen]
    assert seen[0][0] == seen[1][0] != seen[2][0]
    assert after == [[], []]


def test_a_part_that_does_not_lead_takes_no_requests(model):
    """Each is refused, with who takes them; what is asked of every part it answers."""

    async def run():
        async with two(model) as (_, follower):
            for call in (follower.generate(ask(5)), follower.pause(PauseMode.KEEP), follower.resume()):
                with pytest.raises(CapabilityError, match="part 1 of a replica on 2 hosts takes no requests"):
                    await call
            with pytest.raises(VersionRegressed):
                await follower.receive_weights(other_weights(model).offer(0), 0)
            await follower.commit_weights(0)
            return await follower.status()

    status = asyncio.run(run())

    assert (status.version, status.num_running, status.tokens_generated) == (0, 0, 0)


def test_a_part_whose_process_ended_says_so(model):
    """With its last words, to whoever asks how it is and to the next update; nothing is started again."""

    async def run():
        async with two(model) as (_, follower):
            waiting = [p for p in psutil.Process().children(recursive=True) if "sleep(600)" in " ".join(p.cmdline())]
            waiting[-1].send_signal(signal.SIGKILL)  # the first is its watchdog
            async with asyncio.timeout(20):
                error = await lost(follower)
            with pytest.raises(GenerationFailed, match="part 1 of the toy server ended with code"):
                await follower.receive_weights(other_weights(model).offer(1), 1)
            return error, len(follower.toy.launches)

    error, launches = asyncio.run(run())

    assert "part 1 of the toy server ended with code" in str(error)
    assert launches == 1


def test_a_leader_whose_server_ended_is_not_brought_back(model):
    """The other hosts' parts have met the one that is gone: the replica as a whole has to be replaced."""

    async def run():
        async with two(model) as (leader, _):
            call = asyncio.ensure_future(leader.generate(ask(5)))
            await leader.until_in_server(1)
            await kill_server(leader)
            with pytest.raises(GenerationFailed):
                await call
            with pytest.raises(GenerationFailed, match="the toy server ended with code"):
                await leader.status()
            return len(leader.toy.launches)

    assert asyncio.run(run()) == 1


@pytest.mark.parametrize(
    ("options", "lora"),
    [
        ({"url": "http://127.0.0.1:9"}, None),
        ({"direct": True}, None),
        ({}, LoraSpec(rank=1, alpha=1.0, targets=("q",))),
    ],
)
def test_what_does_not_reach_over_hosts_is_refused(model, options, lora):
    """Before a process is started."""

    async def run():
        engine = ToyEngine(SpanningDialect(), **options)
        with pytest.raises(CapabilityError, match="does not serve a replica over several hosts like this"):
            await engine.start(InferenceSpec(model_path=str(model), lora=lora, part=part(0)))
        await engine.close()
        return engine.toy.launches

    assert asyncio.run(run()) == []
