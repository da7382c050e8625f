"""Which routes are called, in which order, and what answers mean."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from areal_core.contract.errors import FingerprintMismatch, GenerationFailed, ModelError, WorkerError
from areal_core.contract.inference import KV_USED_SHARE, NUM_PREEMPTED, PREFIX_HIT_SHARE, PauseMode
from areal_serving.dialect import Call, Dialect
from areal_serving.http import ServerAnswer
from areal_torch.testing.serving import ask
from areal_vllm.config import VLLMConfig
from areal_vllm.dialect import FORGET_IMAGES, GENERATE, VLLMDialect

from .recorded import ScriptedApi, answer, metrics, refused

RPC = "/collective_rpc"
FOLDER = Path("/private/v3")


def dialect() -> VLLMDialect:
    return VLLMDialect(VLLMConfig())


def call() -> Call:
    return Call(
        request=ask(5, 9, 7), server_id="areal-1", max_tokens=4, min_tokens=0, seed=None, end_ids=(1,), cache_space="@0"
    )


def started(**changed: Any) -> ScriptedApi:
    table = {"/version": answer("version"), "/v1/models": answer("models"), RPC: answer("prepared")}
    return ScriptedApi({**table, **changed})


def test_it_is_a_dialect() -> None:
    """All of the seam is there."""
    assert isinstance(dialect(), Dialect)


def test_facts_are_the_servers_own() -> None:
    """Version and context as it tells them, not as they were asked for."""
    facts = asyncio.run(dialect().facts(started()))

    assert facts.engine_version == "0.32.0"
    assert facts.context_length == 4096
    assert facts.details == {"runner": "CPUModelRunner", "num_workers": "1"}


def test_facts_install_the_hooks() -> None:
    """They are asked for of every server that is started, before any request."""
    api = started()
    asyncio.run(dialect().facts(api))

    assert (RPC, {"method": "areal_prepare", "kwargs": {}}) in api.asked


def test_a_server_without_the_plugin_is_refused() -> None:
    """One started by hand; the error says how to start it."""
    api = started(**{RPC: refused("error_method")})

    with pytest.raises(WorkerError, match="without the plugin's hooks") as caught:
        asyncio.run(dialect().facts(api))
    assert "--worker-extension-cls" in caught.value.fix


def test_a_model_without_a_kernel_is_refused_at_start() -> None:
    """Heads of 16 on the CPU: vLLM starts, is healthy, and ends at the first request."""
    prepared = answer("prepared")
    prepared["results"][0]["unfit"] = "its attention heads are 16 wide; vLLM's CPU kernel takes [32, 64]"

    with pytest.raises(ModelError) as caught:
        asyncio.run(dialect().facts(started(**{RPC: prepared})))
    assert "16" in caught.value.why


def test_a_runner_nobody_knows_is_refused() -> None:
    """Seeds and scores would be wrong without anybody noticing."""
    prepared = answer("prepared")
    prepared["results"][0] |= {"sampling": False, "runner": "GPUModelRunnerV9"}

    with pytest.raises(WorkerError, match="samples in a way"):
        asyncio.run(dialect().facts(started(**{RPC: prepared})))


def test_generation_goes_through_token_ids() -> None:
    """A recorded answer comes back as a reply."""
    api = ScriptedApi({GENERATE: answer("greedy")})
    reply = asyncio.run(dialect().generate(api, call()))

    assert len(reply.output_ids) == 4
    assert api.asked[0][1]["token_ids"] == [5, 9, 7]


@pytest.mark.parametrize("name", ["error_vocabulary", "error_temperature"])
def test_a_refusal_is_passed_on(name: str) -> None:
    """The engine knows what a 400 means for a request."""
    api = ScriptedApi({GENERATE: refused(name)})

    with pytest.raises(ServerAnswer) as caught:
        asyncio.run(dialect().generate(api, call()))
    assert caught.value.status == 400


def test_the_503_of_a_paused_server_is_passed_on() -> None:
    """0.33 gives it where 0.32 queues; the engine takes it as interrupted before it began."""
    api = ScriptedApi({GENERATE: ServerAnswer(GENERATE, 503, "paused")})

    with pytest.raises(ServerAnswer) as caught:
        asyncio.run(dialect().generate(api, call()))
    assert caught.value.status == 503


def test_an_abort_names_requests_as_vllm_does() -> None:
    """With the route's prefix: a bare id aborts nothing, and the answer is 200 all the same."""
    api = ScriptedApi({"/abort_requests": None})
    asyncio.run(dialect().abort(api, ["areal-1", "areal-2"]))

    assert api.asked == [("/abort_requests", {"request_ids": ["generate-tokens-areal-1", "generate-tokens-areal-2"]})]


def test_an_abort_of_nothing_is_not_sent() -> None:
    """To vLLM no ids are all ids."""
    api = ScriptedApi({})
    asyncio.run(dialect().abort(api, []))

    assert api.asked == []


@pytest.mark.parametrize("mode", list(PauseMode))
def test_a_pause_leaves_the_cache_alone(mode: PauseMode) -> None:
    """vLLM clears it by default, which would cost every later request its prefix."""
    api = ScriptedApi({"/pause": None})
    asyncio.run(dialect().pause(api, mode))

    assert api.asked == [("/pause", {"mode": mode.value, "clear_cache": "false"})]


def proof(**fingerprints: str) -> dict[str, Any]:
    return {"done": True, "fingerprints": fingerprints, "problem": ""}


def test_a_proof_is_waited_for() -> None:
    """Workers read beside generating; they are asked until they are done."""
    api = ScriptedApi({RPC: [{"results": [{"done": False}]}, {"results": [proof(a="1")]}]})

    assert asyncio.run(dialect().prove(api, FOLDER)) == {"a": "1"}
    assert [asked["method"] for _, asked in api.asked] == ["areal_prove"] * 2


def test_workers_must_agree() -> None:
    """Two that read other bytes hold two models."""
    api = ScriptedApi({RPC: {"results": [proof(a="1", b="2"), proof(a="1", b="3")]}})

    with pytest.raises(FingerprintMismatch, match="'b'"):
        asyncio.run(dialect().prove(api, FOLDER))


def test_a_worker_that_cannot_read_says_why() -> None:
    """Its own words are in the error."""
    broken = {"done": True, "fingerprints": {}, "problem": "FileNotFoundError: gone"}

    with pytest.raises(FingerprintMismatch, match="cannot read") as caught:
        asyncio.run(dialect().prove(ScriptedApi({RPC: {"results": [broken]}}), FOLDER))
    assert "gone" in caught.value.why


@pytest.mark.parametrize("keep", [True, False])
def test_weights_are_loaded_before_they_are_stamped(keep: bool) -> None:
    """And the running requests' keys and values are dropped only if asked to."""
    done = {FORGET_IMAGES: None, "/update_weight_version": None, "/reset_prefix_cache": None}
    api = ScriptedApi({RPC: {"results": [{"num_tensors": 2}]}, **done})
    asyncio.run(dialect().load(api, FOLDER, 3, keep_cache=keep))

    wanted: list[tuple[str, Any]] = [
        (RPC, {"method": "areal_load", "kwargs": {"folder": str(FOLDER)}}),
        (FORGET_IMAGES, {}),
        ("/update_weight_version", {"new_version": "3"}),
    ]
    if not keep:
        wanted.append(("/reset_prefix_cache", {"reset_running_requests": "true"}))
    assert api.asked == wanted


def test_nan_is_taken_out_of_the_cache_with_the_next_weights() -> None:
    """Once: what weights that are not finite left in the cache would spoil the next requests that get its blocks."""
    broken = answer("greedy")
    broken["choices"][0]["logprobs"]["content"][0]["logprob"] = -9999.0
    loaded = {"results": [{"num_tensors": 2}]}
    api = ScriptedApi({GENERATE: broken, RPC: loaded, FORGET_IMAGES: None, "/update_weight_version": None})

    async def scene() -> None:
        speaker = dialect()
        with pytest.raises(GenerationFailed):
            await speaker.generate(api, call())
        for version in (3, 4):
            await speaker.load(api, FOLDER, version, keep_cache=True)

    asyncio.run(scene())
    orders = [asked["kwargs"] for path, asked in api.asked if path == RPC]

    assert orders == [{"folder": str(FOLDER), "clean": True}, {"folder": str(FOLDER)}]


def test_weights_that_did_not_load_are_not_stamped() -> None:
    """The old version's name stays on whatever the server is then."""
    api = ScriptedApi({RPC: refused("error_method")})

    with pytest.raises(ServerAnswer):
        asyncio.run(dialect().load(api, FOLDER, 3, keep_cache=True))
    assert [path for path, _ in api.asked] == [RPC]


def test_counters_have_the_cores_names() -> None:
    """Of a recorded /metrics; shares are between 0 and 1."""
    gauges = asyncio.run(dialect().gauges(ScriptedApi({"/metrics": metrics()})))

    assert gauges.tokens_generated > 0
    assert gauges.metrics["prompt_tokens"] > 0
    assert all(0 <= gauges.metrics[name] <= 1 for name in (KV_USED_SHARE, PREFIX_HIT_SHARE))
    assert gauges.metrics[NUM_PREEMPTED] == 0


def test_counters_of_several_engines_add_up() -> None:
    """vLLM writes one line per engine process."""
    lines = "".join(f'vllm:num_requests_running{{engine="{n}",model_name="policy"}} {n}.0\n' for n in (1, 2))

    assert asyncio.run(dialect().gauges(ScriptedApi({"/metrics": lines}))).num_running == 3


@pytest.mark.parametrize(
    ("words", "blamed"),
    [
        ("ValueError: Model architectures ['Nope'] are not supported for now.", True),
        ("safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooLarge", True),
        ("torch.OutOfMemoryError: CUDA out of memory", False),
        ("OSError: [Errno 98] Address already in use", False),
    ],
)
def test_the_models_faults_are_told_from_the_machines(words: str, blamed: bool) -> None:
    """A model folder that cannot be served is the user's to change."""
    assert dialect().blames_model(words) is blamed


def test_the_version_a_part_began_with_does_not_choose_its_seed() -> None:
    """The worker draws by seed and place: a part of its own seed would draw other tokens than the whole."""
    api = ScriptedApi({GENERATE: [answer("greedy"), answer("greedy")]})
    whole = evolve(call(), request=ask(5, 9, 7, seed=11), seed=11)
    part = evolve(call(), request=ask(5, 9, 7, seed=11, num_prior=1), seed=424242)
    for one in (whole, part):
        asyncio.run(dialect().generate(api, one))

    assert [asked["sampling_params"]["seed"] for _, asked in api.asked] == [11, 11]
