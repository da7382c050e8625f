"""Against one real SGLang server on the CPU: what it does, and what it would do without the hooks or the checks.

Needs the environment `areal env create sglang --device cpu` makes. `make test-sglang`
"""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import Coroutine, Iterator
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, TypeVar, cast

import psutil
import pytest
import torch
from attrs import define, evolve

from areal_core.contract.data import StopReason
from areal_core.contract.errors import BatchError, CapabilityError
from areal_core.contract.inference import Generation, Grammar, InferenceSpec, PauseMode, Structure
from areal_core.contract.weights import Receipt
from areal_local.transports.collective import CollectiveTransport
from areal_local.transports.config import CollectiveConfig
from areal_serving.http import Api, ServerAnswer
from areal_sglang.config import SGLangConfig
from areal_sglang.dialect import SGLangDialect
from areal_sglang.engine import SGLangEngine
from areal_torch.testing.models import make_tiny_model
from areal_torch.testing.serving import FolderWeights, ask, full_logits, until_generated

pytestmark = [pytest.mark.sglang, pytest.mark.slow, pytest.mark.timeout(900)]

T = TypeVar("T")
PROMPT = (5, 9, 7)
END = 1
"""The end token of the tiny models."""
CLOSE = 1e-4


class Served:
    """An engine and the loop it lives in, for tests that are no coroutines."""

    def __init__(self, model: Path) -> None:
        self.model = model
        self.version = 0
        self._runner = asyncio.Runner()
        self.engine = SGLangEngine(SGLangConfig(max_restarts=0, kv_cache_gib=0.05, tool_parser="qwen25", direct=True))
        self.run(self.engine.start(InferenceSpec(model_path=str(model), max_concurrent=32)))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end."""
        return self._runner.run(work)

    def generate(self, *ids: int, **asked: Any) -> Generation:
        """Generate for one prompt. Any: as `ask` takes it."""
        return self.run(self.engine.generate(ask(*ids, **asked)))

    def refused(self, path: str, body: Any, *, key: bool = True) -> ServerAnswer:
        """Send something to the server behind the engine's back and return its refusal."""
        served = self.engine.serving
        api = served if key else Api(served.url, "")

        async def post() -> None:
            try:
                await api.post(path, body)
            finally:
                if not key:
                    await api.close()

        with pytest.raises(ServerAnswer) as caught:
            self.run(post())
        return caught.value

    async def update(self, weights: FolderWeights) -> None:
        """Serve these weights as the next version."""
        self.version += 1
        await self.engine.receive_weights(weights.offer(self.version), self.version)
        await self.engine.commit_weights(self.version)

    def close(self) -> None:
        """End it."""
        self.run(self.engine.close())
        self._runner.close()


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an untied tiny model."""
    return make_tiny_model(tmp_path_factory.mktemp("sglang"), kind="qwen3", tied=False, max_position=512)


@pytest.fixture(scope="session")
def served(model: Path) -> Iterator[Served]:
    """Return the one server of this session; every test leaves it with the weights it found."""
    one = Served(model)
    try:
        yield one
    finally:
        one.close()


def truth(model: Path, ids: tuple[int, ...], count: int) -> torch.Tensor:
    """Return the logits of the last `count` tokens of a sequence, float32 [count, V]."""
    return full_logits(model, list(ids))[-count - 1 : -1]


def test_greedy_tokens_and_log_probs_are_the_model_s(served: Served) -> None:
    """Log-probs of a greedy request are those of temperature 1."""
    made = served.generate(*PROMPT, max_new_tokens=24, temperature=0.0, ignore_eos=True)
    wanted = truth(served.model, (*PROMPT, *made.output_ids), 24).log_softmax(-1)

    assert made.output_ids == tuple(wanted.argmax(-1).tolist())
    assert torch.allclose(torch.tensor(made.logprobs), wanted.max(-1).values, atol=CLOSE)


def test_log_probs_are_of_what_was_drawn_from(served: Served) -> None:
    """SGLang's own are those before top-p and top-k: too low by the log of the share that is left."""
    made = served.generate(*PROMPT, max_new_tokens=24, temperature=0.7, top_k=4, top_p=0.9, ignore_eos=True)
    for token, given, row in zip(
        made.output_ids, made.logprobs, truth(served.model, (*PROMPT, *made.output_ids), 24) / 0.7, strict=True
    ):
        best = row.log_softmax(-1).topk(4)
        share = best.values.softmax(-1)
        left = int((share.cumsum(0) < 0.9).sum()) + 1
        kept = dict(zip(best.indices[:left].tolist(), (share[:left] / share[:left].sum()).log().tolist(), strict=True))

        assert token in kept
        assert given == pytest.approx(kept[token], abs=1e-3)


PENALTIES = {"frequency_penalty": 0.7, "presence_penalty": 0.4, "repetition_penalty": 1.3}


def penalised(logits: torch.Tensor, prompt: tuple[int, ...], output: tuple[int, ...]) -> torch.Tensor:
    """Return log-probs [V] under PENALTIES, given the logits of the token after prompt and output."""
    counts = torch.bincount(torch.tensor(output, dtype=torch.int64), minlength=len(logits))
    seen = counts > 0
    seen[list(prompt)] = True
    scaled = torch.where(seen, torch.where(logits > 0, logits / 1.3, logits * 1.3), logits)
    return (scaled - 0.7 * counts - 0.4 * (counts > 0)).log_softmax(-1)


@pytest.mark.parametrize("prior", [0, 5])
def test_penalties_are_of_what_was_generated(served: Served, prior: int) -> None:
    """While steps overlap SGLang counts the last token late; and it knows nothing of earlier parts and the prompt."""
    asked = {"max_new_tokens": 16, "temperature": 0.0, "ignore_eos": True, **PENALTIES}
    before = served.generate(*PROMPT, **asked).output_ids[:prior]
    made = served.generate(*PROMPT, *before, num_prior=prior, **asked)
    output = (*before, *made.output_ids)
    rows = full_logits(served.model, [*PROMPT, *output])[len(PROMPT) - 1 :]
    wanted = [penalised(rows[place], PROMPT, output[:place]) for place in range(prior, len(output))]

    assert list(made.output_ids) == [int(row.argmax()) for row in wanted]
    assert made.logprobs == pytest.approx([float(row.max()) for row in wanted], abs=1e-3)


@pytest.mark.parametrize("begun", ["", "ab"])
def test_a_structure_binds_the_whole_text(served: Served, begun: str) -> None:
    """Also where an earlier part began it."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(served.model)
    prior = tokenizer.encode(begun, add_special_tokens=False) if begun else []
    structure = Structure(grammar=Grammar.REGEX, text="abc[d-f]{2}")
    request = evolve(ask(*PROMPT, *prior, num_prior=len(prior), max_new_tokens=16), structure=structure)
    made = served.run(served.engine.generate(request))

    assert made.stop_reason is StopReason.STOP
    assert re.fullmatch("abc[d-f]{2}", begun + tokenizer.decode(made.output_ids, skip_special_tokens=True))


def test_a_continued_request_draws_as_if_it_were_one(served: Served) -> None:
    """The stream of a seed is indexed by position."""
    whole = served.generate(*PROMPT, max_new_tokens=20, seed=11, ignore_eos=True)
    first, rest = whole.output_ids[:7], whole.output_ids[7:]

    assert served.generate(*PROMPT, *first, num_prior=7, max_new_tokens=13, seed=11, ignore_eos=True).output_ids == rest


def test_requests_without_a_seed_differ(served: Served) -> None:
    """In SGLang's deterministic mode, the one that takes seeds, they would all be the same."""

    async def many() -> list[Generation]:
        asked = (served.engine.generate(ask(*PROMPT, name=f"r{n}", max_new_tokens=16)) for n in range(6))
        return await asyncio.gather(*asked)

    assert len({made.output_ids for made in served.run(many())}) == 6


def test_every_stamp_of_an_update_in_flight_is_true(served: Served) -> None:
    """Each version writes a token of its own. SGLang stamps the token it had computed and not read with the new one."""
    start = FolderWeights.of(served.model)

    async def updated() -> list[Generation]:
        await served.update(start.tell(20))
        asked = [ask(*PROMPT, name=f"u{n}", max_new_tokens=160, temperature=0.0, ignore_eos=True) for n in range(4)]
        calls = [asyncio.ensure_future(served.engine.generate(request)) for request in asked]
        for token in (21, 22):
            await until_generated(served.engine, 80)
            await served.update(start.tell(token))
        made = await asyncio.gather(*calls)
        await served.update(start)
        return made

    first = served.version + 1
    for made in served.run(updated()):
        assert {span.version for span in made.version_spans} == {first, first + 1, first + 2}
        for span in made.version_spans:
            assert set(made.output_ids[span.start : span.stop]) == {20 + span.version - first}


def test_ranks_take_weights_from_the_sender_in_place(served: Served) -> None:
    """Twice, the second time in the same group; both ends have the same fingerprints."""
    start = FolderWeights.of(served.model)
    ends = [CollectiveTransport(CollectiveConfig(timeout_s=120.0)) for _ in range(3)]
    controller, sender, receiver = ends

    async def streamed(token: int) -> tuple[Receipt, Receipt, Generation]:
        served.version += 1
        offer = controller.open(served.version)
        (own,) = controller.expect(offer, ("replica",))
        await served.engine.pause(PauseMode.KEEP)
        try:
            took, sent = await asyncio.gather(
                served.engine.receive_weights(receiver.source(own), served.version),
                asyncio.to_thread(start.tell(token).send, sender, offer),
            )
            await served.engine.commit_weights(served.version)
        finally:
            await served.engine.resume()
            controller.release(offer)
        made = await served.engine.generate(ask(*PROMPT, max_new_tokens=4, temperature=0.0, ignore_eos=True))
        return took, sent, made

    try:
        for token in (33, 34):
            took, sent, made = served.run(streamed(token))

            assert took.fingerprints == sent.fingerprints
            assert made.output_ids == (token,) * 4
            assert [span.version for span in made.version_spans] == [served.version]
    finally:
        for end in ends:
            end.close()
        served.run(served.update(start))


def test_new_requests_find_nothing_of_old_weights(served: Served) -> None:
    """The prefix cache has entries of the prompt under both."""
    other = FolderWeights.of(served.model).tell(30)
    asked = {"max_new_tokens": 3, "temperature": 0.0, "ignore_eos": True}
    prompt = tuple(range(2, 60))
    before = served.generate(*prompt, **asked)
    served.run(served.update(other))
    during = served.generate(*prompt, **asked)
    served.run(served.update(FolderWeights.of(served.model)))

    assert during.output_ids == (30, 30, 30)
    assert served.generate(*prompt, **asked).output_ids == before.output_ids


@define
class InPlaceFirst:
    """A server that is first told to freeze where it should have moved out what runs; counts what that leads to."""

    api: Api
    told: int = 0
    stale: int = 0

    async def post(self, path: str, body: Any = None, **options: Any) -> Any:
        """Pass a POST on. Any: as `Api` takes and gives it."""
        if path == "/pause_generation":
            self.told += 1
            body = body if self.told > 1 else {"mode": "in_place"}
        try:
            return await self.api.post(path, body, **options)
        except ServerAnswer as error:
            self.stale += error.status == 400 and "cache was not flushed" in error.text
            raise

    async def text(self, path: str) -> str:
        """Pass a GET on."""
        return await self.api.text(path)


def test_an_update_that_leaves_a_stale_cache_is_brought_to_its_end(served: Served, tmp_path: Path) -> None:
    """SGLang answers 400 with the new weights live; what it kept of the old ones would be found for old prompts."""
    other = make_tiny_model(tmp_path / "other", kind="qwen3", tied=False, max_position=512, seed=7)
    asked = {"max_new_tokens": 12, "temperature": 0.0, "ignore_eos": True}
    prompt = tuple(range(2, 60))
    before = served.generate(*prompt, **asked)
    hasty = InPlaceFirst(served.engine.serving)
    served.version += 1

    async def updated() -> None:
        long = [ask(*prompt, name=f"s{n}", max_new_tokens=440, ignore_eos=True) for n in range(4)]
        calls = [asyncio.ensure_future(served.engine.generate(request)) for request in long]
        await until_generated(served.engine, 4)
        await served.engine.pause(PauseMode.KEEP)
        await SGLangDialect().load(cast(Api, hasty), other, served.version, keep_cache=False)
        await served.engine.resume()
        await asyncio.gather(*calls)

    try:
        served.run(updated())
        made = served.generate(*prompt, **asked)
    finally:
        served.run(served.update(FolderWeights.of(served.model)))

    assert hasty.stale == 1
    assert made.output_ids == tuple(truth(other, (*prompt, *made.output_ids), 12).argmax(-1).tolist())
    assert made.output_ids != before.output_ids


def test_stop_tokens_count_where_end_tokens_do_not(served: Served) -> None:
    """With ignore_eos SGLang ignores both."""
    path = served.generate(*PROMPT, max_new_tokens=12, temperature=0.0, ignore_eos=True).output_ids
    made = served.generate(*PROMPT, max_new_tokens=12, temperature=0.0, ignore_eos=True, stop_token_ids=(path[-1],))

    assert made.stop_reason is StopReason.STOP
    assert made.output_ids == path[: path.index(path[-1]) + 1]


def test_an_ignored_end_token_is_a_token_like_others(served: Served) -> None:
    """SGLang forbids it up to the minimum length, which changes every log-prob."""
    asked = {"max_new_tokens": 6, "temperature": 0.0, "ignore_eos": True}
    plain, least = served.generate(*PROMPT, **asked), served.generate(*PROMPT, min_new_tokens=6, **asked)

    assert plain.logprobs == pytest.approx(least.logprobs, abs=CLOSE)


def test_a_stop_string_does_not_end_what_is_too_short(served: Served) -> None:
    """SGLang ends it there."""
    path = served.generate(*PROMPT, max_new_tokens=12, temperature=0.0, ignore_eos=True).output_ids
    from transformers import AutoTokenizer

    text = AutoTokenizer.from_pretrained(served.model).decode([path[0]])
    asked = {"max_new_tokens": 12, "temperature": 0.0, "ignore_eos": True, "stop": (text,)}

    assert len(served.generate(*PROMPT, **asked).output_ids) == 1
    assert len(served.generate(*PROMPT, min_new_tokens=5, **asked).output_ids) >= 5


def test_ending_a_request_ends_no_other(served: Served) -> None:
    """SGLang ends every request whose name begins with the one given: cancelling areal-1 would end areal-12."""

    async def cancelled() -> list[Generation]:
        asked = [ask(*PROMPT, name=f"c{n}", max_new_tokens=120, ignore_eos=True) for n in range(25)]
        calls = [asyncio.ensure_future(served.engine.generate(request)) for request in asked]
        await until_generated(served.engine, 50)
        for number in range(0, 25, 2):
            calls[number].cancel()
        return [await call for number, call in enumerate(calls) if number % 2]

    assert {len(made.output_ids) for made in served.run(cancelled())} == {120}


def test_what_was_frozen_returns_when_the_pause_becomes_an_abort(served: Served) -> None:
    """SGLang takes note of the abort, and returns only when it goes on."""

    async def interrupted() -> list[Generation]:
        asked = [ask(*PROMPT, name=f"p{n}", max_new_tokens=400, ignore_eos=True) for n in range(4)]
        calls = [asyncio.ensure_future(served.engine.generate(request)) for request in asked]
        await until_generated(served.engine, 20)
        await served.engine.pause(PauseMode.KEEP)
        await served.engine.pause(PauseMode.ABORT)
        made = [call.result() for call in calls]
        await served.engine.resume()
        return made

    for made in served.run(interrupted()):
        assert made.stop_reason is StopReason.ABORTED
        assert 0 < len(made.output_ids) == len(made.logprobs) < 400


def test_an_output_fills_the_context(served: Served) -> None:
    """SGLang cuts it two tokens before."""
    made = served.generate(*PROMPT, max_new_tokens=4096, temperature=0.0, ignore_eos=True)

    assert len(PROMPT) + len(made.output_ids) == 512


def test_scores_are_of_the_temperature_asked_for(served: Served) -> None:
    """SGLang gives those of temperature 1."""
    ids = (5, 9, 7, 30, 8, 41)
    for heat in (1.0, 0.5, 3.0):
        rows = (full_logits(served.model, list(ids)) / heat).log_softmax(-1)
        wanted = [0.0, *(float(rows[place, token]) for place, token in enumerate(ids[1:]))]

        assert served.run(served.engine.score(ids, heat)) == pytest.approx(wanted, abs=CLOSE)


def test_an_id_outside_the_vocabulary_is_refused(served: Served) -> None:
    """The server would end; see `test_what_ends_a_server`."""
    with pytest.raises(BatchError, match="outside the vocabulary"):
        served.generate(5, 64)

    assert served.generate(*PROMPT, max_new_tokens=1).output_ids


def test_nobody_is_put_to_sleep_unless_the_option_is_on(served: Served) -> None:
    """And says which."""
    with pytest.raises(CapabilityError, match="cannot sleep"):
        served.run(served.engine.sleep())


def test_an_engine_that_sleeps_gives_weights_and_cache_back(tmp_path: Path) -> None:
    """On the CPU too, where SGLang frees nothing; given weights again it computes what it computed before."""
    model = make_tiny_model(tmp_path / "model", hidden=512, layers=8, heads=8, max_position=512)
    weights = sum(file.stat().st_size for file in model.glob("*.safetensors"))
    request = ask(5, 9, 7, max_new_tokens=12, temperature=0.0)

    def resident() -> int:
        return sum(process.memory_info().rss for process in psutil.Process().children(recursive=True))

    async def scene() -> tuple[list[int], list[Generation]]:
        engine = SGLangEngine(SGLangConfig(sleep=True))
        await engine.start(InferenceSpec(model_path=str(model), max_concurrent=4, context_length=512))
        try:
            seen, made = list[int](), [await engine.generate(request)]
            for version in (1, 2):
                await engine.pause(PauseMode.ABORT)
                seen.append(resident())
                await engine.sleep()
                seen.append(resident())
                await engine.wake()
                await engine.receive_weights(FolderWeights.of(model).offer(version), version)
                await engine.commit_weights(version)
                await engine.resume()
                made.append(await engine.generate(request))
            return seen, made
        finally:
            await engine.close()

    seen, made = asyncio.run(scene())
    for awake, asleep in zip(seen[::2], seen[1::2], strict=True):
        assert awake - asleep > 0.9 * weights, f"weights {weights}, resident {seen}"
    assert {each.output_ids for each in made} == {made[0].output_ids}
    assert [each.version_spans[0].version for each in made] == [0, 1, 2]


def test_an_update_that_is_not_from_a_folder_needs_a_beginning(served: Served) -> None:
    """Whatever sends tensors must begin and end."""
    body = {"names": [], "dtypes": [], "shapes": [], "group_name": "g"}
    answer = served.refused("/update_weights_from_distributed", body)

    assert answer.status == 400
    assert "begin_weight_update" in answer.text


def test_pickled_tensors_are_refused(served: Served) -> None:
    """SGLang unpickles them, and ends: by torch's default a tensor is shared through a descriptor only a child has."""
    assert torch.multiprocessing.get_sharing_strategy() == "file_descriptor"
    tensor = next(iter(FolderWeights.of(served.model).tensors.items()))
    pickled = base64.b64encode(bytes(ForkingPickler.dumps([tensor]))).decode()
    served.run(served.engine.serving.post("/begin_weight_update", {"selector": "all"}))
    try:
        answer = served.refused("/update_weights_from_tensor", {"serialized_named_tensors": [pickled]})
    finally:
        served.run(served.engine.serving.post("/end_weight_update", {}))

    assert answer.status == 400
    assert "takes no pickled tensors" in answer.text
    assert served.generate(*PROMPT, max_new_tokens=1).output_ids


def test_nobody_without_the_key_is_served(served: Served) -> None:
    """Also not on the same machine; and the key is in no command line and no log."""
    answer = served.refused("/generate", {"input_ids": [5], "sampling_params": {"max_new_tokens": 1}}, key=False)
    key = served.engine.serving.headers["Authorization"].removeprefix("Bearer ")
    server = served.engine.running.server
    assert server.process_id is not None
    family = psutil.Process(server.process_id).children(recursive=True)

    assert answer.status == 401
    assert not any(key in " ".join(process.cmdline()) for process in family)
    assert key not in server.tail(200)


def test_tool_calls_are_read_by_sglang(served: Served) -> None:
    """By the parser the options name."""
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
    text = 'so <tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    parsed = served.run(served.engine.parse_tool_calls(text, [tool]))

    assert [(call.name, call.arguments) for call in parsed.calls] == [("add", '{"a": 1}')]


@pytest.mark.parametrize("reason", ["out_of_vocabulary", "memory_while_busy"])
def test_what_ends_a_server(reason: str, model: Path) -> None:
    """The two the engine keeps from it. A server that ends all the same is brought back, at no episode's cost."""

    async def survived() -> tuple[Generation, float]:
        engine = SGLangEngine(SGLangConfig(max_restarts=1, kv_cache_gib=0.05))
        await engine.start(InferenceSpec(model_path=str(model), max_concurrent=4))
        try:
            call = asyncio.ensure_future(
                engine.generate(ask(*PROMPT, max_new_tokens=500, temperature=0.0, ignore_eos=True))
            )
            await until_generated(engine, 4)
            path, body = {
                "out_of_vocabulary": ("/generate", {"input_ids": [5, 64], "sampling_params": {"max_new_tokens": 2}}),
                "memory_while_busy": ("/release_memory_occupation", {"tags": None}),
            }[reason]
            sent = asyncio.ensure_future(engine.serving.post(path, body, timeout_s=300.0))
            made = await call
            await asyncio.gather(sent, return_exceptions=True)
            return made, (await engine.status()).metrics["num_restarts"]
        finally:
            await engine.close()

    made, restarts = asyncio.run(survived())

    assert restarts == 1
    assert len(made.output_ids) == 500
