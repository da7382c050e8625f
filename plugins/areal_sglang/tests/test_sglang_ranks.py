"""Against one real SGLang server of two ranks on the CPU, with a model with experts: tokens, weights, traces.

Needs the environment `areal env create sglang --device cpu` makes. `make test-sglang`
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from attrs import define

from areal_conformance.oracles.experts import Routers
from areal_core.contract.inference import Generation, InferenceSpec, PauseMode
from areal_core.contract.train import ROUTED_EXPERTS
from areal_core.contract.weights import Receipt
from areal_core.weights.tensors import fingerprint
from areal_local.transports.collective import CollectiveTransport
from areal_local.transports.config import CollectiveConfig
from areal_sglang import asking
from areal_sglang.config import SGLangConfig
from areal_sglang.conformance import witness
from areal_sglang.engine import SGLangEngine
from areal_torch.testing.models import make_tiny_model
from areal_torch.testing.serving import FolderWeights, ask, full_logits, until_generated

pytestmark = [pytest.mark.sglang, pytest.mark.slow, pytest.mark.timeout(900)]

T = TypeVar("T")
PROMPT = (5, 9, 7)
CLOSE = 1e-4


@define
class Served:
    """A server over two ranks, folders of its first and of other weights, and the loop it lives in."""

    engine: SGLangEngine
    first: Path
    other: Path
    runner: asyncio.Runner
    version: int = 0

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end."""
        return self.runner.run(work)

    async def update(self, folder: Path) -> Receipt:
        """Serve a folder's weights as the next version."""
        self.version += 1
        receipt = await self.engine.receive_weights(FolderWeights.of(folder).offer(self.version), self.version)
        await self.engine.commit_weights(self.version)
        return receipt


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Start the one server; every test begins by giving it the weights it needs."""
    root = tmp_path_factory.mktemp("ranks")
    first, other = (
        make_tiny_model(root / name, kind="qwen3_moe", tied=False, max_position=512, seed=seed)
        for name, seed in (("first", 0), ("other", 21))
    )
    options = SGLangConfig(max_restarts=0, kv_cache_gib=0.05, direct=True, trace_experts=True, kv_on_update="recompute")
    spec = InferenceSpec(model_path=str(first), max_concurrent=8, layout={"d": 1, "t": 2})
    with asyncio.Runner() as runner:
        one = Served(SGLangEngine(options), first, other, runner)
        one.run(one.engine.start(spec))
        try:
            yield one
        finally:
            one.run(one.engine.close())


def expect_greedy(made: Generation, folder: Path, *, start: int = 0) -> None:
    """Expect the tokens from `start` on, and their log-probs, to be the best ones of a folder's model."""
    rows = full_logits(folder, [*PROMPT, *made.output_ids])[len(PROMPT) - 1 + start : -1].log_softmax(-1)

    assert made.output_ids[start:] == tuple(rows.argmax(-1).tolist())
    assert torch.allclose(torch.tensor(made.logprobs[start:]), rows.max(-1).values, atol=CLOSE)


def expect_trace(made: Generation, folder: Path, start: int, stop: int) -> None:
    """Expect rows [start, stop) of a trace to be the experts a folder's model chooses."""
    routes = Routers(folder).routes([*PROMPT, *made.output_ids])
    rows = slice(len(PROMPT) - 1 + start, len(PROMPT) - 1 + stop)
    given = made.token_extras[ROUTED_EXPERTS][start:stop].long().sort(-1).values
    wrong = (given != routes.experts[rows]).any(-1) & routes.decided[rows]

    assert given.shape == routes.experts[rows].shape
    assert not wrong.any()


def test_two_ranks_update_from_a_folder_as_one(served: Served) -> None:
    """Both prove the bytes sent; their parts put together are the tensors sent; tokens are of the new weights."""
    for folder in (served.other, served.first):
        receipt = served.run(served.update(folder))
        sent, held = FolderWeights.of(folder).tensors, witness(served.engine).tensors()
        made = served.run(served.engine.generate(ask(*PROMPT, max_new_tokens=16, temperature=0.0, ignore_eos=True)))

        assert receipt.fingerprints == {name: fingerprint(tensor) for name, tensor in sent.items()}
        assert {name: fingerprint(tensor) for name, tensor in held.items()} == dict(receipt.fingerprints)
        expect_greedy(made, folder)


def test_two_ranks_take_broadcasts_as_one(served: Served) -> None:
    """Each joins the sender's group with a rank of its own, and hashes every tensor it took."""
    ends = [CollectiveTransport(CollectiveConfig(timeout_s=120.0)) for _ in range(3)]
    controller, sender, receiver = ends

    async def streamed(folder: Path) -> tuple[Receipt, Receipt, list[dict[str, Any]], Generation]:
        served.version += 1
        offer = controller.open(served.version)
        (own,) = controller.expect(offer, ("replica",))
        await served.engine.pause(PauseMode.KEEP)
        try:
            took, sent = await asyncio.gather(
                served.engine.receive_weights(receiver.source(own), served.version),
                asyncio.to_thread(FolderWeights.of(folder).send, sender, offer),
            )
            ranks = await asking.ask(served.engine.serving, "received")
            await served.engine.commit_weights(served.version)
        finally:
            await served.engine.resume()
            controller.release(offer)
        asked = ask(*PROMPT, max_new_tokens=16, temperature=0.0, ignore_eos=True)
        return took, sent, ranks, await served.engine.generate(asked)

    try:
        for folder in (served.other, served.first):
            took, sent, ranks, made = served.run(streamed(folder))

            assert took.fingerprints == sent.fingerprints
            assert [rank["fingerprints"] for rank in ranks] == [dict(sent.fingerprints)] * 2
            expect_greedy(made, folder)
    finally:
        for end in ends:
            end.close()


def test_a_trace_is_of_the_weights_that_drew_each_token(served: Served) -> None:
    """An update that computes the cache again goes through the old tokens again, with other experts."""
    served.run(served.update(served.first))
    before = served.version

    async def updated() -> list[Generation]:
        asked = [ask(*PROMPT, name=f"t{n}", max_new_tokens=90, temperature=0.0, ignore_eos=True) for n in range(3)]
        calls = [asyncio.ensure_future(served.engine.generate(request)) for request in asked]
        await until_generated(served.engine, 60)
        await served.update(served.other)
        return await asyncio.gather(*calls)

    for made in served.run(updated()):
        old, new = made.version_spans

        assert (old.version, new.version) == (before, before + 1)
        expect_trace(made, served.first, old.start, old.stop)
        expect_greedy(made, served.other, start=new.start)
        expect_trace(made, served.other, new.start, new.stop)
