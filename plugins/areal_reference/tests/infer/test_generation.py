"""What comes out of the generator is what the model says, however many requests run together."""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil

import pytest
import torch
from attrs import evolve
from transformers import (
    LogitsProcessorList,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from areal_core.contract.data import StopReason
from areal_core.contract.errors import BatchError, PromptTooLong
from areal_core.contract.inference import PauseMode
from areal_torch.testing.serving import ask, full_logits, until_generated

PROMPTS = [(5, 9, 7), (4,), (5, 9, 7), (11, 3, 8, 20, 6, 6, 9, 30), (5, 9), (40, 41, 42, 43, 44)]


def reported(folder, request, generation, warpers=()):
    """Return (reported, recomputed) log-probs of one generation."""
    ids = [*request.input_ids, *generation.output_ids]
    logits = full_logits(folder, ids)[len(request.input_ids) - 1 : -1]
    logits = LogitsProcessorList(list(warpers))(torch.tensor([ids]), logits)
    expected = torch.log_softmax(logits, -1).gather(1, torch.tensor(generation.output_ids)[:, None])[:, 0]
    return torch.tensor(generation.logprobs), expected, logits


@pytest.mark.parametrize("kind", ["qwen3", "qwen2", "llama"])
def test_greedy_tokens_and_logprobs_are_those_of_a_full_forward(kind, serve, model_folder):
    """Cache, packing and prefix sharing change nothing: transformers without a cache agrees to 1e-4."""
    folder = model_folder(kind)
    requests = [ask(*ids, temperature=0.0, max_new_tokens=24, ignore_eos=True) for ids in PROMPTS]

    async def run():
        async with serve(folder) as engine:
            return await asyncio.gather(*(engine.generate(request) for request in requests))

    for request, generation in zip(requests, asyncio.run(run()), strict=True):
        got, expected, logits = reported(folder, request, generation)
        assert list(generation.output_ids) == logits.argmax(-1).tolist()
        torch.testing.assert_close(got, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("sampling", "warpers"),
    [
        ({"temperature": 1.0}, []),
        ({"temperature": 0.7}, [TemperatureLogitsWarper(0.7)]),
        ({"temperature": 1.3, "top_k": 5}, [TemperatureLogitsWarper(1.3), TopKLogitsWarper(5)]),
        ({"temperature": 1.0, "top_p": 0.8}, [TopPLogitsWarper(0.8)]),
        (
            {"temperature": 0.9, "top_k": 20, "top_p": 0.6},
            [TemperatureLogitsWarper(0.9), TopKLogitsWarper(20), TopPLogitsWarper(0.6)],
        ),
    ],
    ids=["plain", "temperature", "top_k", "top_p", "all"],
)
def test_logprobs_are_those_of_the_distribution_sampled_from(sampling, warpers, serve, model_folder):
    """Temperature, top-k and top-p are in the reported log-probs as transformers' own processors compute them."""
    requests = [ask(*ids, seed=n, max_new_tokens=20, ignore_eos=True, **sampling) for n, ids in enumerate(PROMPTS)]

    async def run():
        async with serve() as engine:
            crowd = [engine.generate(ask(7, 8, seed=99 + n, temperature=0.5, max_new_tokens=30)) for n in range(3)]
            return (await asyncio.gather(*(engine.generate(request) for request in requests), *crowd))[: len(requests)]

    for request, generation in zip(requests, asyncio.run(run()), strict=True):
        got, expected, _ = reported(model_folder(), request, generation, warpers)
        torch.testing.assert_close(got, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("deterministic", [False, True])
def test_a_repetition_penalty_is_transformers_own(temperature, deterministic, serve, model_folder):
    """Prompt and output count, in log-probs and in what is taken, also beside rows without a penalty."""
    asked = {"temperature": temperature, "repetition_penalty": 1.6, "max_new_tokens": 16, "ignore_eos": True}
    requests = [ask(*ids, seed=n, name=str(n), **asked) for n, ids in enumerate(PROMPTS)]

    async def run():
        async with serve(config={"deterministic": deterministic}) as engine:
            crowd = [engine.generate(ask(7, 8, seed=99 + n, temperature=0.5, max_new_tokens=20)) for n in range(3)]
            return (await asyncio.gather(*(engine.generate(request) for request in requests), *crowd))[: len(requests)]

    for request, generation in zip(requests, asyncio.run(run()), strict=True):
        ids = [*request.input_ids, *generation.output_ids]
        logits = full_logits(model_folder(), ids)
        for place, (token, given) in enumerate(zip(generation.output_ids, generation.logprobs, strict=True)):
            before = ids[: len(request.input_ids) + place]
            row = RepetitionPenaltyLogitsProcessor(1.6)(torch.tensor([before]), logits[len(before) - 1][None])
            wanted = torch.log_softmax(row[0] / (temperature or 1.0), -1)
            assert given == pytest.approx(wanted[token].item(), abs=1e-4)
            assert temperature or token == wanted.argmax().item()


def test_a_continued_request_counts_its_prior_tokens_as_output(serve):
    """Frequency and presence penalties leave the prompt alone, so what counts as output matters."""
    asked = {"temperature": 0.0, "frequency_penalty": 1.1, "presence_penalty": 0.4, "ignore_eos": True}

    async def run():
        async with serve() as engine:
            whole = await engine.generate(ask(5, 9, 7, max_new_tokens=20, **asked))
            prior = whole.output_ids[:8]
            more = ask(5, 9, 7, *prior, num_prior=8, max_new_tokens=12, **asked)
            as_prompt = evolve(more, num_prior=0)
            return whole, await engine.generate(more), await engine.generate(as_prompt)

    whole, rest, other = asyncio.run(run())
    assert rest.output_ids == whole.output_ids[8:]
    assert rest.logprobs == pytest.approx(whole.logprobs[8:], abs=1e-4)
    assert other.logprobs != pytest.approx(rest.logprobs, abs=1e-2)


def test_bfloat16_weights_are_served(serve, model_folder):
    """A bfloat16 engine agrees with transformers in bfloat16 within its rounding."""
    request = ask(5, 9, 7, temperature=0.0, max_new_tokens=12, ignore_eos=True)

    async def run():
        async with serve(dtype="bfloat16") as engine:
            return await engine.generate(request)

    generation = asyncio.run(run())
    ids = [*request.input_ids, *generation.output_ids]
    logits = full_logits(model_folder(), ids, torch.bfloat16)[2:-1]
    expected = torch.log_softmax(logits, -1).gather(1, torch.tensor(generation.output_ids)[:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(generation.logprobs), expected, atol=0.15, rtol=0)


def test_requests_do_not_feel_each_other(serve):
    """A request gives the same tokens alone as in a crowd that comes and goes, with more requests than rows."""
    requests = [
        ask(*(3 + (n * k) % 50 for k in range(1, 2 + n % 7)), seed=n, max_new_tokens=1 + n * 5 % 40, name=str(n))
        for n in range(60)
    ]

    async def run():
        async with serve(max_concurrent=13) as engine:
            together = await asyncio.gather(*(engine.generate(request) for request in requests))
            alone = [await engine.generate(request) for request in requests[::7]]
            return together, alone

    together, alone = asyncio.run(run())
    assert [g.output_ids for g in together[::7]] == [g.output_ids for g in alone]
    for crowd, single in zip(together[::7], alone, strict=True):
        assert crowd.logprobs == pytest.approx(single.logprobs, abs=1e-4)


def test_equal_prompts_are_computed_once(serve, model_folder):
    """Members of a group share their prompt's cache entries, also a member that arrives later."""
    prompt = (5, 9, 7, 11, 12, 13)

    async def run():
        async with serve(model_folder(max_position=4096)) as engine:
            first = [engine.generate(ask(*prompt, seed=n, max_new_tokens=3500, ignore_eos=True)) for n in range(4)]
            tasks = [asyncio.ensure_future(call) for call in first]
            await until_generated(engine, 1)
            await engine.generate(ask(*prompt, seed=9, max_new_tokens=3))
            running = (await engine.status()).metrics
            await engine.pause(PauseMode.ABORT)
            await asyncio.gather(*tasks)
            return running

    metrics = asyncio.run(run())
    assert (metrics["prompt_tokens_computed"], metrics["prompt_tokens_shared"]) == (5, 20)


def test_beginnings_of_unlike_lengths_are_shared_in_one_step(serve, model_folder):
    """Prompts that differ in their last token keep it, beside others that share more."""
    prompts = [(5, 9, 7, last) for last in (11, 12, 13)] + [(*range(20, 40), last) for last in (3, 4)]
    requests = [ask(*ids, temperature=0.0, max_new_tokens=6, ignore_eos=True) for ids in prompts]

    async def run():
        async with serve() as engine:
            return await asyncio.gather(*(engine.generate(request) for request in requests))

    for request, generation in zip(requests, asyncio.run(run()), strict=True):
        got, expected, logits = reported(model_folder(), request, generation)
        assert list(generation.output_ids) == logits.argmax(-1).tolist()
        torch.testing.assert_close(got, expected, atol=1e-4, rtol=0)


def test_a_seed_fixes_the_output_and_another_seed_changes_it(serve):
    """Equal seeds give equal tokens in one batch; different seeds give different ones."""
    seeds = [7, 7, 8, None]

    async def run():
        async with serve() as engine:
            calls = (engine.generate(ask(5, 9, seed=s, max_new_tokens=30, ignore_eos=True)) for s in seeds)
            return [g.output_ids for g in await asyncio.gather(*calls)]

    same, again, other, chosen = asyncio.run(run())
    assert same == again
    assert len({same, other, chosen}) == 3


def test_requests_without_a_seed_differ_by_their_id(serve):
    """The engine's own choice of a seed depends on the request's id, so members of a group differ."""

    async def run():
        async with serve() as engine:
            calls = (engine.generate(ask(5, 9, name=f"m{n}", max_new_tokens=20, ignore_eos=True)) for n in range(8))
            return {g.output_ids for g in await asyncio.gather(*calls)}

    assert len(asyncio.run(run())) == 8


@pytest.mark.parametrize("cut", [1, 4, 11])
@pytest.mark.parametrize("deterministic", [False, True])
def test_a_continued_request_gives_the_tokens_of_an_uninterrupted_one(cut, deterministic, serve):
    """Prior tokens offset the random stream; in deterministic mode the log-probs are the same bits too."""
    options = {"seed": 3, "temperature": 1.1, "top_p": 0.9, "ignore_eos": True}

    async def run():
        async with serve(config={"deterministic": deterministic}) as engine:
            whole = await engine.generate(ask(5, 9, 7, max_new_tokens=12, **options))
            prior = whole.output_ids[:cut]
            rest = await engine.generate(ask(5, 9, 7, *prior, num_prior=cut, max_new_tokens=12 - cut, **options))
            return whole, rest

    whole, rest = asyncio.run(run())
    assert whole.output_ids[cut:] == rest.output_ids
    assert rest.logprobs == (whole.logprobs[cut:] if deterministic else pytest.approx(whole.logprobs[cut:], abs=1e-4))


def _first_new_token(outputs):
    """Return the place of the first token that did not occur before it, after the first."""
    return next(i for i in itertools.count(1) if outputs[i] not in outputs[:i])


def test_a_stop_token_ends_the_output_and_stays(serve):
    """Stop tokens count even when the model's end tokens are ignored."""

    async def run():
        async with serve() as engine:
            free = await engine.generate(ask(5, 9, seed=1, max_new_tokens=30, ignore_eos=True))
            place = _first_new_token(free.output_ids)
            token = free.output_ids[place]
            stopped = await engine.generate(
                ask(5, 9, seed=1, max_new_tokens=30, ignore_eos=True, stop_token_ids=(token,))
            )
            return free, place, stopped

    free, place, stopped = asyncio.run(run())
    assert stopped.output_ids == free.output_ids[: place + 1]
    assert (stopped.stop_reason, free.stop_reason) == (StopReason.STOP, StopReason.LENGTH)


def test_the_models_end_token_ends_the_output_unless_ignored(serve):
    """Across seeds, an output ends at token 1 exactly when it is not ignored."""

    async def run():
        async with serve() as engine:
            calls = [
                engine.generate(ask(5, 9, seed=s, max_new_tokens=60, ignore_eos=i))
                for s in range(20)
                for i in (False, True)
            ]
            return await asyncio.gather(*calls)

    outputs = asyncio.run(run())
    for normal, ignoring in zip(outputs[::2], outputs[1::2], strict=True):
        assert len(ignoring.output_ids) == 60
        end = ignoring.output_ids.index(1) if 1 in ignoring.output_ids else 59
        assert normal.output_ids == ignoring.output_ids[: end + 1]
        assert normal.stop_reason == (StopReason.STOP if normal.output_ids[-1] == 1 else StopReason.LENGTH)
    assert any(g.stop_reason is StopReason.STOP for g in outputs)


def test_the_end_token_of_a_config_counts_where_the_settings_of_generation_name_none(serve, model_folder, tmp_path):
    """Many folders recommend a temperature there and nothing else."""
    folder = shutil.copytree(model_folder(), tmp_path / "model")
    (folder / "generation_config.json").write_text(json.dumps({"do_sample": True, "temperature": 0.6}))

    async def run():
        async with serve(folder) as engine:
            return await asyncio.gather(*(engine.generate(ask(5, 9, seed=s, max_new_tokens=60)) for s in range(20)))

    ended = [generation for generation in asyncio.run(run()) if 1 in generation.output_ids]
    assert ended and all(generation.output_ids.index(1) == len(generation.output_ids) - 1 for generation in ended)


@pytest.mark.parametrize("prior", [0, 6])
def test_end_tokens_cannot_be_drawn_before_the_minimum_length(prior, serve):
    """They have probability zero until then (prior tokens count), and end the output afterwards."""
    everything = tuple(range(2, 64))

    async def run():
        async with serve() as engine:
            stops = everything[:-1]
            return await engine.generate(
                ask(
                    5,
                    9,
                    *[63] * prior,
                    num_prior=prior,
                    seed=2,
                    min_new_tokens=10,
                    max_new_tokens=30,
                    stop_token_ids=stops,
                )
            )

    generation = asyncio.run(run())
    early = generation.output_ids[: 10 - prior]
    assert set(early) <= {0, 63}
    assert len(generation.output_ids) >= 10 - prior
    if set(generation.output_ids) - {0, 63}:
        assert generation.stop_reason is StopReason.STOP


@pytest.mark.parametrize("prior", [0, 1])
def test_a_stop_string_ends_the_output_at_the_token_that_completes_it(prior, serve):
    """The string may span tokens, and begin in tokens generated before an interruption."""

    async def run():
        async with serve() as engine:
            decode = engine.running.loaded.tokenizer.decode
            free = await engine.generate(ask(5, 9, seed=4, max_new_tokens=30, ignore_eos=True))
            text = decode(free.output_ids[: prior + 3], skip_special_tokens=False)
            tail = text[-2:] if prior == 0 else text
            stopped = await engine.generate(
                ask(
                    5,
                    9,
                    *free.output_ids[:prior],
                    num_prior=prior,
                    seed=4,
                    max_new_tokens=30,
                    ignore_eos=True,
                    stop=("@@", tail),
                )
            )
            pieces = [decode(free.output_ids[: n + 1], skip_special_tokens=False) for n in range(30)]
            return free, stopped, next(n for n in range(prior, 30) if tail in pieces[n])

    free, stopped, place = asyncio.run(run())
    assert stopped.output_ids == free.output_ids[prior : place + 1]
    assert stopped.stop_reason is StopReason.STOP


def test_reaching_the_end_of_the_context_ends_the_output_as_length(serve):
    """The last token may stand at the last position, not beyond."""

    async def run():
        async with serve(context_length=20) as engine:
            return await engine.generate(ask(*[5] * 16, seed=1, max_new_tokens=100, ignore_eos=True))

    generation = asyncio.run(run())
    assert len(generation.output_ids) == 4
    assert generation.stop_reason is StopReason.LENGTH


def test_a_prompt_without_room_for_one_token_is_refused(serve):
    """It is refused before any work, with its length and the context's."""

    async def run():
        async with serve(context_length=20) as engine:
            await engine.generate(ask(*[5] * 20))

    with pytest.raises(PromptTooLong, match=r"prompt of 20 tokens .* context of 20"):
        asyncio.run(run())


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (ask(5, 64), "token id 64"),
        (ask(-1), "token id -1"),
        (ask(5, stop_token_ids=(99,)), "token id 99"),
        (ask(), "0 tokens"),
        (ask(5, 6, num_prior=2), "2 were generated"),
        (ask(5, max_new_tokens=0), "max_new_tokens is 0"),
        (ask(5, temperature=-0.5), "temperature is -0.5"),
        (ask(5, temperature=float("nan")), "temperature is nan"),
        (ask(5, top_p=0.0), "top_p is 0.0"),
        (ask(5, top_k=-1), "top_k -1"),
        (ask(5, stop=("",)), "stop string is empty"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_request_no_engine_could_serve_is_refused_by_name(request_, words, serve):
    """Nothing out of range reaches the model; others are still served afterwards."""

    async def run():
        async with serve() as engine:
            with pytest.raises(BatchError, match=words):
                await engine.generate(request_)
            return await engine.generate(ask(5, max_new_tokens=2, ignore_eos=True))

    assert len(asyncio.run(run()).output_ids) == 2
