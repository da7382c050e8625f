"""Against a real vLLM server on the CPU: what the plugin promises, and every trap of vLLM's it steps around.

    make test-vllm

One server serves all of them; each test leaves it at rest with the weights of `v0`, under whatever version.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import subprocess
import urllib.error
import urllib.request
from collections.abc import Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import attrs
import pytest
import torch

from areal_core.contract.data import StopReason
from areal_core.contract.errors import BatchError, CapabilityError
from areal_core.contract.inference import Generation, Grammar, InferenceSpec, PauseMode, Structure
from areal_serving import environment
from areal_serving.http import Api, ServerAnswer
from areal_torch.testing.models import make_tiny_model
from areal_torch.testing.serving import FolderWeights, ask, full_logits, until_generated
from areal_vllm.config import VLLMConfig
from areal_vllm.conformance import ADAPTER, witness
from areal_vllm.dialect import GENERATE, rpc
from areal_vllm.engine import VLLMEngine
from areal_vllm.payloads import id_inside, reply_of

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(900)]

T = TypeVar("T")
ATOL = 2e-4
LONG = 1200


class Served:
    """One started engine and the event loop it lives in."""

    def __init__(self, engine: VLLMEngine, v0: Path, v1: Path, loop: asyncio.AbstractEventLoop) -> None:
        self.engine = engine
        self.v0, self.v1 = v0, v1
        self._loop = loop
        self._version = 0

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run to its end."""
        return self._loop.run_until_complete(work)

    @property
    def api(self) -> Api:
        """Return the server itself."""
        return self.engine.serving

    async def update(self, folder: Path) -> int:
        """Have it serve another folder's weights; return their version."""
        self._version += 1
        await self.engine.receive_weights(FolderWeights.of(folder).offer(self._version), self._version)
        await self.engine.commit_weights(self._version)
        return self._version

    async def raw(self, **sampling: Any) -> dict[str, Any]:
        """Ask the route itself. Any: JSON."""
        body = {"token_ids": [5, 9, 7], "sampling_params": {"logprobs": 0, "detokenize": False, **sampling}}
        answer: dict[str, Any] = await self.api.post(GENERATE, body)
        return answer


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two models of one shape; heads of 32, the smallest vLLM's CPU kernel takes."""
    root = tmp_path_factory.mktemp("models")
    make = functools.partial(make_tiny_model, hidden=32, head_dim=32, tied=False, max_position=4096)
    return make(root / "v0", seed=0), make(root / "v1", seed=1)


@pytest.fixture(scope="session")
def served(folders: tuple[Path, Path]) -> Iterator[Served]:
    """Start the one server; `make test-vllm` has made its environment, and without one every test here fails."""
    loop = asyncio.new_event_loop()
    engine = VLLMEngine(VLLMConfig(kv_cache_gib=0.25, tool_parser="hermes", max_adapters=2))
    loop.run_until_complete(engine.start(InferenceSpec(model_path=str(folders[0]), max_concurrent=16)))
    try:
        yield Served(engine, *folders, loop)
    finally:
        loop.run_until_complete(engine.close())
        loop.close()


def logprobs_of(folder: Path, prompt: tuple[int, ...], made: Generation, temperature: float = 1.0) -> list[float]:
    """Return transformers' own log-probs of what was made."""
    ids = [*prompt, *made.output_ids]
    rows = (full_logits(folder, ids) / temperature).log_softmax(-1)[len(prompt) - 1 : -1]
    found: list[float] = rows.gather(-1, torch.tensor(made.output_ids)[:, None]).squeeze(-1).tolist()
    return found


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_logprobs_are_of_the_distribution_sampled_from(served: Served, temperature: float) -> None:
    """Temperature included, also one that vLLM itself refuses; vLLM's default mode would leave it out."""
    made = served.run(served.engine.generate(ask(5, 9, 7, temperature=temperature, seed=3, max_new_tokens=24)))

    wanted = logprobs_of(served.v0, (5, 9, 7), made, temperature)
    assert list(made.logprobs) == pytest.approx(wanted, abs=ATOL)


def test_vllm_itself_refuses_a_high_temperature(served: Served) -> None:
    """And silently takes 0.01 for a lower one: why temperatures beyond its range go beside."""
    with pytest.raises(ServerAnswer) as caught:
        served.run(served.raw(temperature=3.0))
    assert caught.value.status == 400


def test_a_continued_request_draws_on(served: Served) -> None:
    """The same tokens as uninterrupted, wherever it was cut."""
    asked = functools.partial(ask, temperature=1.0, seed=2**40, max_new_tokens=24, ignore_eos=True)
    whole = served.run(served.engine.generate(asked(5, 9, 7))).output_ids
    for cut in (1, 9, 23):
        rest = ask(
            *(5, 9, 7, *whole[:cut]),
            num_prior=cut,
            temperature=1.0,
            seed=2**40,
            max_new_tokens=24 - cut,
            ignore_eos=True,
        )

        assert served.run(served.engine.generate(rest)).output_ids == whole[cut:]


def test_a_seeded_prompt_in_pieces_leaves_the_server_alive(served: Served) -> None:
    """vLLM 0.32 on the CPU ends with `CPU Generator does not use offset` after the first piece."""
    prompt = tuple(2 + n % 60 for n in range(3000))
    made = served.run(served.engine.generate(ask(*prompt, temperature=1.0, seed=4, max_new_tokens=3, ignore_eos=True)))

    assert len(made.output_ids) == 3
    assert served.run(served.engine.status()).metrics["num_restarts"] == 0


def test_the_token_that_completes_a_stop_string_stays(served: Served) -> None:
    """vLLM cuts its text there; the tokens are whole."""
    path = served.run(served.engine.generate(ask(5, 9, 7, temperature=0.0, max_new_tokens=12))).output_ids
    vocabulary = json.loads((served.v0 / "tokenizer.json").read_text())["model"]["vocab"]
    letters = {number: letter for letter, number in vocabulary.items()}
    words = "".join(letters[token] for token in path)
    text = words[3:5]
    made = served.run(served.engine.generate(ask(5, 9, 7, temperature=0.0, max_new_tokens=12, stop=(text,))))

    assert made.output_ids == path[: words.index(text) + 2]
    assert made.stop_reason is StopReason.STOP


def test_an_update_in_flight_is_stamped_exactly(served: Served) -> None:
    """Up to the stamp the old weights' greedy path, from there on another."""

    async def scene() -> tuple[Generation, Generation, int]:
        request = ask(5, 9, 7, temperature=0.0, max_new_tokens=LONG, ignore_eos=True)
        old = await served.engine.generate(request)
        running = asyncio.ensure_future(served.engine.generate(request))
        await until_generated(served.engine, 40)
        version = await served.update(served.v1)
        return old, await running, version

    old, made, version = served.run(scene())
    served.run(served.update(served.v0))
    before, after = made.version_spans

    assert after.version == version
    assert made.output_ids[: before.stop] == old.output_ids[: before.stop]
    assert made.output_ids[before.stop :] != old.output_ids[before.stop :]


def test_every_weight_in_use_is_the_one_sent(served: Served) -> None:
    """Read back out of the layers, fused and packed as they are."""
    served.run(served.update(served.v1))
    in_use, sent = witness(served.engine).tensors(), FolderWeights.of(served.v1).tensors
    served.run(served.update(served.v0))

    assert in_use.keys() == sent.keys()
    assert all(torch.equal(in_use[name], sent[name]) for name in sent)


def test_scores_are_of_the_temperature_asked_for(served: Served) -> None:
    """vLLM's own prompt log-probs are of temperature 1, whatever a request says."""
    ids = (5, 9, 7, 30, 8, 41)
    for temperature in (0.5, 1.0, 2.0):
        rows = (full_logits(served.v0, list(ids)) / temperature).log_softmax(-1)
        wanted = [0.0, *(float(rows[place, token]) for place, token in enumerate(ids[1:]))]

        assert list(served.run(served.engine.score(ids, temperature))) == pytest.approx(wanted, abs=ATOL)


def test_a_bare_id_aborts_nothing(served: Served) -> None:
    """And is answered with 200; the route's prefix makes it work."""

    async def scene() -> tuple[bool, dict[str, Any]]:
        body = {
            "request_id": "mine",
            "token_ids": [5, 9, 7],
            "sampling_params": {"max_tokens": LONG, "ignore_eos": True, "logprobs": 0},
        }
        running = asyncio.ensure_future(served.api.post(GENERATE, body, timeout_s=None))
        await until_generated(served.engine, 20)
        await served.api.post("/abort_requests", {"request_ids": ["mine"]})
        await until_generated(served.engine, 20)
        still = not running.done()
        await served.api.post("/abort_requests", {"request_ids": [id_inside("mine")]})
        return still, (await running)["choices"][0]

    still, choice = served.run(scene())

    assert still
    assert choice["finish_reason"] == "abort"
    assert 0 < len(choice["token_ids"]) < LONG


def told_inside(script: str, *folders: Path) -> Any:
    """Run a script under vLLM's interpreter, without a server; return what it prints last. Any: JSON."""
    python = environment.find("vllm", "cpu").path
    environ = {**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_USE_V2_MODEL_RUNNER": "0"}
    environ |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    done = subprocess.run(
        [python, Path(__file__).with_name("inside") / script, *folders],
        env={**environ, "TORCH_COMPILE_DISABLE": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_a_bare_load_leaves_half_a_model(folders: tuple[Path, Path]) -> None:
    """vLLM packs linear weights away after loading, and its loader fails on them midway; ours unpacks them first."""
    told = told_inside("bare_load.py", *folders)

    assert told["error"]
    assert 0 < told["num_new_after_bare_load"] < told["num_tensors"]
    assert told["num_new_after_ours"] == told["num_tensors"]


@pytest.mark.parametrize("asked", [{"kind": "qwen3_moe", "tied": False}, {"kind": "qwen3", "tied": True}])
def test_what_vllm_packs_once_is_packed_at_every_load(tmp_path: Path, asked: dict[str, Any]) -> None:
    """Experts, and heads tied to the embeddings: after vLLM's own reload on the CPU it computes with old ones."""
    make = functools.partial(make_tiny_model, heads=2, kv_heads=1, head_dim=32, max_position=1024, **asked)
    other = make(tmp_path / "other", seed=9)
    told = told_inside("reload.py", make(tmp_path / "served", seed=3), other)
    ids = list(told["prompt"])
    for _ in told["ours"]:
        ids.append(int(full_logits(other, ids)[-1].argmax()))

    assert told["ours"] == ids[len(told["prompt"]) :]
    assert told["vllm"] != told["ours"], "vLLM packs again by itself: ours may go"


def test_an_answer_tells_what_the_prefix_cache_held(served: Served) -> None:
    """Nothing at first, then whole blocks: a request with none needs no second computation after an update."""
    body = {"token_ids": [5, 9, 7, 30] * 100, "sampling_params": {"max_tokens": 1, "logprobs": 0, "detokenize": False}}
    first, second = (reply_of(served.run(served.api.post(GENERATE, body))) for _ in range(2))

    assert first.cached_tokens == 0
    assert second.cached_tokens is not None
    assert 0 < second.cached_tokens < 400


def test_a_500_closes_its_connection(served: Served) -> None:
    """A client that keeps connections would lose its next call on it; ours keeps none."""
    request = urllib.request.Request(
        f"{served.api.url}/collective_rpc",
        data=b'{"method": "no_such_method"}',
        headers={**served.api.headers, "Connection": "keep-alive"},
    )
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, timeout=60)
    caught.value.close()
    made = served.run(served.engine.generate(ask(5, 9, 7, max_new_tokens=2)))

    assert caught.value.code == 500
    assert len(made.output_ids) == 2


def test_vllms_own_sleep_on_the_cpu_frees_nothing(served: Served) -> None:
    """Why the plugin frees memory there itself: vLLM answers 200. Unless the option is on, nobody is put to sleep."""

    async def scene() -> tuple[int, int]:
        before = (await rpc(served.api, "areal_memory"))[0]["resident"]
        await served.api.post("/sleep", params={"level": "1"})
        asleep = (await rpc(served.api, "areal_memory"))[0]["resident"]
        await served.api.post("/wake_up")
        return before, asleep

    before, asleep = served.run(scene())
    assert asleep > 0.95 * before
    with pytest.raises(CapabilityError, match="sleep"):
        served.run(served.engine.sleep())


def test_an_engine_that_sleeps_gives_weights_and_cache_back(tmp_path: Path) -> None:
    """What vLLM packed of the weights too; when it was given weights again it computes what it computed before."""
    model = make_tiny_model(tmp_path / "model", hidden=512, layers=8, heads=8, max_position=512)
    weights = sum(file.stat().st_size for file in model.glob("*.safetensors"))
    request = ask(5, 9, 7, max_new_tokens=12, temperature=0.0)

    async def scene() -> tuple[list[int], list[Generation]]:
        engine = VLLMEngine(VLLMConfig(kv_cache_gib=0.25, sleep=True))
        await engine.start(InferenceSpec(model_path=str(model), max_concurrent=4))
        try:
            resident, made = list[int](), [await engine.generate(request)]
            for version in (1, 2):
                await engine.pause(PauseMode.ABORT)
                resident.append((await rpc(engine.serving, "areal_memory"))[0]["resident"])
                await engine.sleep()
                resident.append((await rpc(engine.serving, "areal_memory"))[0]["resident"])
                await engine.wake()
                await engine.receive_weights(FolderWeights.of(model).offer(version), version)
                await engine.commit_weights(version)
                await engine.resume()
                made.append(await engine.generate(request))
            return resident, made
        finally:
            await engine.close()

    resident, made = asyncio.run(scene())
    for awake, asleep in zip(resident[::2], resident[1::2], strict=True):
        assert awake - asleep > 0.9 * weights, f"weights {weights}, resident {resident}"
    assert {each.output_ids for each in made} == {made[0].output_ids}
    assert [each.version_spans[0].version for each in made] == [0, 1, 2]


def test_an_aborting_pause_returns_everything(served: Served) -> None:
    """With the tokens made so far; nothing goes on until `resume`."""

    async def scene() -> list[Generation]:
        request = ask(5, 9, 7, temperature=1.0, max_new_tokens=LONG, ignore_eos=True)
        calls = [
            asyncio.ensure_future(served.engine.generate(attrs.evolve(request, request_id=f"r{n}"))) for n in range(4)
        ]
        await until_generated(served.engine, 40)
        await served.engine.pause(PauseMode.ABORT)
        made = await asyncio.gather(*calls)
        await served.engine.resume()
        return made

    for made in served.run(scene()):
        assert made.stop_reason is StopReason.ABORTED
        assert len(made.output_ids) == len(made.logprobs) < LONG


def test_a_structure_holds_over_a_continuation(served: Served) -> None:
    """Prior tokens are the beginning of the text it is about."""
    structure = Structure(grammar=Grammar.REGEX, text="[0-9]{3}-[a-z]{4}")
    request = attrs.evolve(ask(5, 9, temperature=1.0, seed=9, max_new_tokens=20), structure=structure)
    whole = served.run(served.engine.generate(request)).output_ids
    rest = attrs.evolve(request, input_ids=(5, 9, *whole[:5]), num_prior=5)

    assert len(whole) == 9
    assert served.run(served.engine.generate(rest)).output_ids == whole[5:]


def test_penalties_count_prior_tokens(served: Served) -> None:
    """A continued request goes on as it would have."""
    asked = {"temperature": 0.0, "frequency_penalty": 1.5, "presence_penalty": 0.5, "ignore_eos": True}
    whole = served.run(served.engine.generate(ask(5, 9, 7, max_new_tokens=16, **asked))).output_ids
    rest = ask(5, 9, 7, *whole[:6], num_prior=6, max_new_tokens=10, **asked)

    assert served.run(served.engine.generate(rest)).output_ids == whole[6:]


def test_tool_calls_are_read_by_vllms_parser(served: Served) -> None:
    """A call that cannot be read is content."""
    tools: list[Mapping[str, Any]] = [
        {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
    ]
    text = 'Yes.<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    found = served.run(served.engine.parse_tool_calls(text, tools))
    broken = served.run(served.engine.parse_tool_calls(text[:40], tools))

    assert found.content == "Yes."
    assert [(call.name, json.loads(call.arguments)) for call in found.calls] == [("add", {"a": 1})]
    assert broken.calls == ()
    assert broken.content == text[:40]


def test_a_token_outside_the_vocabulary_is_refused_before_it_is_sent(served: Served) -> None:
    """It costs nobody else anything."""
    with pytest.raises(BatchError, match="vocabulary"):
        served.run(served.engine.generate(ask(5, 9999)))


def test_a_server_somebody_else_runs_is_found_by_address_and_key(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is left running at the end."""
    monkeypatch.setenv("KEY_OF_THAT_SERVER", served.api.headers["Authorization"].removeprefix("Bearer "))
    other = VLLMEngine(VLLMConfig(url=served.api.url, key_env="KEY_OF_THAT_SERVER"))

    async def scene() -> Generation:
        await other.start(InferenceSpec(model_path=str(served.v0)))
        try:
            return await other.generate(ask(5, 9, 7, temperature=0.0, max_new_tokens=4))
        finally:
            await other.close()

    made = served.run(scene())
    again = served.run(served.engine.generate(ask(5, 9, 7, temperature=0.0, max_new_tokens=4)))

    assert made.output_ids == again.output_ids


def test_a_killed_server_comes_back_with_its_weights(served: Served) -> None:
    """A request in flight has its answer from the next server, of the version that served."""

    async def scene() -> tuple[Generation, Generation, int]:
        version = await served.update(served.v1)
        request = ask(5, 9, 7, temperature=0.0, max_new_tokens=LONG, ignore_eos=True)
        before = await served.engine.generate(request)
        running = asyncio.ensure_future(served.engine.generate(request))
        await until_generated(served.engine, 40)
        ADAPTER.faults(served.engine)["server_killed"].inject()
        return before, await running, version

    before, after, version = served.run(scene())
    served.run(served.update(served.v0))

    assert {span.version for span in after.version_spans} == {version}
    assert after.output_ids == before.output_ids
