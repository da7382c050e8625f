"""An output ends where it was asked to, keeps the token that ended it, and says why it ended.

Knows: end tokens, stop tokens, stop strings, minimum length; greedy paths without them as the truth.
Does not know: distributions (`sampling`).
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from areal_conformance.benches.infer import InferBench
from areal_conformance.check import Level, check
from areal_conformance.checks.infer.sampling import judge_output
from areal_conformance.oracles.infer_judging import expect_policy, well_formed
from areal_conformance.outcome import Inconclusive, expect
from areal_core.config.model_folder import load_tokenizer
from areal_core.contract.data import StopReason
from areal_core.contract.inference import Generation, GenerationRequest, InferenceEngine
from areal_torch.testing.serving import FolderWeights

END = 1
LENGTH = 24
PATHS = ((5, 9, 7), (11, 30, 8), (44,), (20, 21, 22, 23))
rule = partial(check, level=Level.SINGLE, law=1, spec="infer#sampling")


def ending(bench: InferBench) -> FolderWeights:
    """Return weights under which the end token is by far the likeliest everywhere; the other tokens keep their odds."""
    whole = bench.weights()
    tensors = dict(whole.tensors)
    head = tensors["lm_head.weight"] = tensors["lm_head.weight"].clone()
    head[END, -1] = 100.0
    return FolderWeights(tensors, dict(whole.tied))


def expect_end(result: Generation, request: GenerationRequest, wanted: tuple[int, ...], reason: StopReason) -> None:
    """Expect an output to be these tokens, ended for this reason."""
    well_formed(result, request)
    got = (result.output_ids, str(result.stop_reason))
    sampling = request.sampling
    asked = f"stop {sampling.stop!r}, stop_token_ids {sampling.stop_token_ids}, min {sampling.min_new_tokens}"
    asked += f", max {sampling.max_new_tokens}, {request.num_prior} prior tokens"
    told = f"expected {wanted} ended by {reason}, got {got[0]} ended by {got[1]}"
    expect(got == (wanted, str(reason)), f"{asked}: {told}")


async def path_of(bench: InferBench, engine: InferenceEngine, prompt: tuple[int, ...]) -> tuple[int, ...]:
    """Return what is generated greedily, without stop strings."""
    return (await engine.generate(bench.ask(*prompt, name="path", max_new_tokens=LENGTH))).output_ids


async def ask_and_expect(
    bench: InferBench,
    engine: InferenceEngine,
    prompt: tuple[int, ...],
    wanted: tuple[int, ...],
    reason: StopReason,
    **asked: Any,
) -> tuple[Generation, GenerationRequest]:
    """Ask, expect this output and its end, and return both. Any: fields of SamplingParams."""
    request = bench.ask(*prompt, **{"max_new_tokens": LENGTH, **asked})
    result = await engine.generate(request)
    expect_end(result, request, wanted, reason)
    return result, request


@rule("infer.sampling.end_at_budget")
async def end_at_budget(bench: InferBench) -> None:
    """An end token that uses up the budget ends the output as `stop`, not as `length`."""
    async with bench.engine() as engine:
        await bench.update(engine, ending(bench))
        for budget in (1, 2, 8):
            await ask_and_expect(bench, engine, (5, 9, 7), (END,), StopReason.STOP, max_new_tokens=budget)


@rule("infer.sampling.several_ends")
async def several_ends(bench: InferBench) -> None:
    """Every end token of the model's generation_config.json ends an output, not only the first."""
    whole = bench.model()
    async with bench.engine(model=whole) as engine:
        paths = {prompt: await path_of(bench, engine, prompt) for prompt in PATHS}
    late = [next((token for token in path[3:] if token not in path[:3]), END) for path in paths.values()]
    ends = sorted({END, *late})
    if len(ends) < 3:
        raise Inconclusive("no greedy path has a token that can serve as a second end")
    folder = _with_ends(bench, whole, ends)
    async with bench.engine(model=folder, fresh=True) as engine:
        for prompt, path in paths.items():
            await ask_and_expect(bench, engine, prompt, *ended_by(path, ends))


@rule("infer.sampling.end_of_config")
async def end_of_config(bench: InferBench) -> None:
    """Where generation_config.json recommends other things and names no end, that of config.json ends an output."""
    folder = _with_ends(bench, bench.model(), None)
    async with bench.engine(model=folder, fresh=True) as engine:
        await bench.update(engine, ending(bench))
        await ask_and_expect(bench, engine, (5, 9, 7), (END,), StopReason.STOP, max_new_tokens=8)


def _with_ends(bench: InferBench, whole: Path, ends: list[int] | None) -> Path:
    """Return a folder whose generation_config.json names these end tokens; None leaves its other words."""
    folder = bench.folder / "other-ends"
    shutil.copytree(whole, folder)
    file = folder / "generation_config.json"
    config = {"do_sample": True, **(json.loads(file.read_text()) if file.is_file() else {}), "eos_token_id": ends}
    file.write_text(json.dumps({name: value for name, value in config.items() if value is not None}))
    return folder


@rule("infer.sampling.ignore_eos", requires=("sampling.ignore_eos",))
async def ignore_eos(bench: InferBench) -> None:
    """With ignore_eos an output goes on past end tokens, which stay possible; without it, it does not."""
    async with bench.engine("sampling.ignore_eos") as engine:
        await bench.update(engine, ending(bench))
        for count in (1, 6):
            ends = (END,) * count
            await ask_and_expect(bench, engine, (5, 9), ends, StopReason.LENGTH, ignore_eos=True, max_new_tokens=count)
        asked = bench.asks([(5, 9, n) for n in range(6)], ignore_eos=[False, True], max_new_tokens=5)
        lengths = [len(result.output_ids) for result in await bench.together(engine, asked)]
    expect(lengths == [1, 5] * 3, f"every second request of a batch ignores the end: lengths [1, 5] * 3, got {lengths}")


@rule("infer.sampling.stop_tokens", requires=("sampling.stop_tokens",))
async def stop_tokens(bench: InferBench) -> None:
    """Any of stop_token_ids ends the output where it first comes, and stays in it; those in the prompt do not count."""
    async with bench.engine("sampling.stop_tokens") as engine:
        for prompt in PATHS:
            path = await path_of(bench, engine, prompt)
            never = next(token for token in range(63, 1, -1) if token not in path)
            for ids in ((path[0],), (path[5],), (never, path[-1]), (path[9], path[4], never), (never,), ()):
                judged = await ask_and_expect(bench, engine, prompt, *ended_by(path, ids), stop_token_ids=ids)
                expect_policy(bench, *judged)
            place = path.index(path[6])
            asked = {"stop_token_ids": (path[6],), "max_new_tokens": place + 1}
            judged = await ask_and_expect(bench, engine, prompt, path[: place + 1], StopReason.STOP, **asked)
            expect_policy(bench, *judged)
            unseen = next((token for token in prompt if token not in path), None)
            if unseen is not None:
                await ask_and_expect(bench, engine, prompt, path, StopReason.LENGTH, stop_token_ids=(unseen,))


@rule("infer.sampling.stop_tokens_and_end", requires=("sampling.stop_tokens", "sampling.ignore_eos"))
async def stop_tokens_and_end(bench: InferBench) -> None:
    """Stop tokens come beside the model's end tokens, not in their place, and count where those are ignored."""
    async with bench.engine("sampling.stop_tokens", "sampling.ignore_eos") as engine:
        await bench.update(engine, ending(bench))
        await ask_and_expect(bench, engine, (5, 9), (END,), StopReason.STOP, stop_token_ids=(40,))
        both = {"stop_token_ids": (40, END), "ignore_eos": True}
        await ask_and_expect(bench, engine, (5, 9), (END,), StopReason.STOP, **both)
        other = {"stop_token_ids": (40,), "ignore_eos": True, "max_new_tokens": 4}
        await ask_and_expect(bench, engine, (5, 9), (END,) * 4, StopReason.LENGTH, **other)


@rule("infer.sampling.min_tokens", requires=("sampling.min_tokens",))
async def min_tokens(bench: InferBench) -> None:
    """Below min_new_tokens, prior tokens counted, the end token cannot be drawn; log-probs are of what is left."""
    async with bench.engine("sampling.min_tokens") as engine:
        weights = ending(bench)
        await bench.update(engine, weights)
        for prior, least in ((0, 0), (0, 1), (0, 2), (0, 7), (1, 7), (4, 7), (6, 7), (7, 7), (9, 7)):
            for heat in (0.0, 1.0):
                given: dict[str, Any] = {"min_new_tokens": least, "temperature": heat, "max_new_tokens": 12}
                ids = (5, 9, 7, *range(30, 30 + prior))
                request = bench.ask(*ids, name=f"{prior}/{least}/{heat}", num_prior=prior, **given)
                result = await engine.generate(request)
                early = max(0, least - prior)
                told = f"min_new_tokens {least} with {prior} prior tokens, temperature {heat:g}"
                due = f"{early} other tokens and then the end token were expected"
                got = (len(result.output_ids), str(result.stop_reason))
                right = END not in result.output_ids[:early] and got == (early + 1, "stop")
                expect(right, f"{told}: {due}, got {result.output_ids}, {result.stop_reason}")
                judge_output(bench, request, result, forbidden=(END,), until=early, tensors=weights.tensors)
        request = bench.ask(5, 9, 7, min_new_tokens=9, max_new_tokens=4)
        result = await engine.generate(request)
        got = (len(result.output_ids), str(result.stop_reason))
        expect(got == (4, "length"), f"min_new_tokens 9 and max_new_tokens 4: 4 tokens ended by length, got {got}")


@rule("infer.sampling.min_tokens_stops", requires=("sampling.min_tokens", "sampling.stop_tokens"))
async def min_tokens_stops(bench: InferBench) -> None:
    """Below min_new_tokens stop tokens cannot be drawn either; from then on they end the output again."""
    async with bench.engine("sampling.min_tokens", "sampling.stop_tokens") as engine:
        weights = bench.weights().tell(40)
        await bench.update(engine, weights)
        for least in (1, 5):
            request = bench.ask(5, 9, min_new_tokens=least, stop_token_ids=(40, 41), max_new_tokens=LENGTH)
            result = await engine.generate(request)
            first, rest = result.output_ids[:least], result.output_ids[least:]
            due = f"{least} tokens other than the stop tokens 40 and 41, then 40, were expected"
            right = rest == (40,) and not {40, 41, END} & {*first}
            expect(right, f"min_new_tokens {least}: {due}; got {result.output_ids}")
            forbidden: dict[str, Any] = {"forbidden": (40, 41, END), "until": least, "tensors": weights.tensors}
            judge_output(bench, request, result, **forbidden)


@rule("infer.sampling.min_tokens_filtered", requires=("sampling.min_tokens", "sampling.top_k"))
async def min_tokens_filtered(bench: InferBench) -> None:
    """Below min_new_tokens filters choose among the tokens that may be drawn, not among all."""
    async with bench.engine("sampling.min_tokens", "sampling.top_k") as engine:
        weights = ending(bench)
        await bench.update(engine, weights)
        for number, (top_k, heat) in enumerate(((1, 1.0), (2, 1.0), (5, 2.0))):
            asked: dict[str, Any] = {"min_new_tokens": 6, "top_k": top_k, "temperature": heat, "max_new_tokens": 9}
            request = bench.ask(5, 9, 7, name=f"r{number}", **asked)
            result = await engine.generate(request)
            output = result.output_ids
            told = f"min_new_tokens 6 with top_k {top_k}: no end token before place 6, got {output}"
            expect(END not in output[:6] and len(output) > 6, told)
            judge_output(bench, request, result, forbidden=(END,), until=6, tensors=weights.tensors)


@rule("infer.sampling.ends_apart", requires=("sampling.stop_tokens", "sampling.stop_strings"))
async def ends_apart(bench: InferBench) -> None:
    """Requests that run together end each by its own stop tokens, stop strings and budget, not by a neighbour's."""
    async with bench.engine("sampling.stop_tokens", "sampling.stop_strings") as engine:
        asked: list[tuple[GenerationRequest, tuple[int, ...], StopReason]] = []
        for number, prompt in enumerate(PATHS):
            path = await path_of(bench, engine, prompt)
            ends = text_ends(bench, path)
            text, token = ends[8 + number][-2:], path[5 + number]
            by_text, by_token = stopped(ends, path, [text]), path[: path.index(token) + 1]
            cases: list[tuple[dict[str, Any], tuple[int, ...], StopReason]] = [
                ({"stop": (text,)}, *by_text),
                ({"stop_token_ids": (token,)}, by_token, StopReason.STOP),
                ({"max_new_tokens": 3 + number}, path[: 3 + number], StopReason.LENGTH),
                ({}, path, StopReason.LENGTH),
            ]
            for kind, (given, wanted, reason) in enumerate(cases):
                request = bench.ask(*prompt, name=f"{number}/{kind}", **{"max_new_tokens": LENGTH, **given})
                asked.append((request, wanted, reason))
        for order in (asked, asked[::-1]):
            calls = [bench.call(engine.generate(request)) for request, _, _ in order]
            for result, (request, wanted, reason) in zip(await bench.results(calls), order, strict=True):
                expect_end(result, request, wanted, reason)


@rule("infer.sampling.stop_strings", requires=("sampling.stop_strings",))
async def stop_strings(bench: InferBench) -> None:
    """The token that completes a stop string, one of several, of any length, ends the output and stays in it."""
    draw = random.Random(3)
    async with bench.engine("sampling.stop_strings") as engine:
        for prompt in PATHS:
            path = await path_of(bench, engine, prompt)
            ends = text_ends(bench, path)
            for number in range(8):
                strings = [_cut(draw, ends) for _ in range(1 + number % 3)]
                if number % 2:
                    strings.insert(number % len(strings), "@never@")
                wanted, reason = stopped(ends, path, strings)
                judged = await ask_and_expect(bench, engine, prompt, wanted, reason, stop=tuple(strings))
                expect_policy(bench, *judged)
            await ask_and_expect(bench, engine, prompt, path, StopReason.LENGTH, stop=("@never@", "#"))
            strings = [ends[7][-3:]]
            wanted, reason = stopped(ends, path, strings)
            asked = {"stop": tuple(strings), "max_new_tokens": len(wanted)}
            judged = await ask_and_expect(bench, engine, prompt, wanted, reason, **asked)
            expect_policy(bench, *judged)


@rule("infer.sampling.stop_strings_prior", requires=("sampling.stop_strings",))
async def stop_strings_prior(bench: InferBench) -> None:
    """A stop string may begin in the prior tokens of a continued request, but never in the prompt."""
    async with bench.engine("sampling.stop_strings") as engine:
        num_tried = 0
        for prompt in PATHS:
            path = await path_of(bench, engine, prompt)
            ends = text_ends(bench, path)
            for cut in (1, 2, 5, 11):
                for before, after in ((1, 1), (2, 3), (5, 1)):
                    text = ends[cut + after][len(ends[max(0, cut - before)]) :]
                    if text in ends[cut]:
                        continue
                    wanted, reason = stopped(ends, path, [text])
                    asked = {"num_prior": cut, "stop": (text,), "max_new_tokens": LENGTH - cut}
                    given = (*prompt, *path[:cut])
                    await ask_and_expect(bench, engine, given, wanted[cut:], reason, **asked)
                    num_tried += 1
            joined = text_ends(bench, prompt[-1:])[-1] + ends[1]
            wanted, reason = stopped(ends, path, [joined])
            await ask_and_expect(bench, engine, prompt, wanted, reason, stop=(joined,))
        if not num_tried:
            raise Inconclusive("no greedy path has a string that begins in one part and ends in the next")


@rule("infer.sampling.stop_strings_min", requires=("sampling.stop_strings", "sampling.min_tokens"))
async def stop_strings_min(bench: InferBench) -> None:
    """A stop string complete before min_new_tokens does not end the output; one that comes with it or later does."""
    async with bench.engine("sampling.stop_strings", "sampling.min_tokens") as engine:
        for prompt in PATHS:
            path = await path_of(bench, engine, prompt)
            ends = text_ends(bench, path)
            for early, late in ((3, 15), (1, 12), (5, 20)):
                first, then = (ends[place][len(ends[place - 1]) :] for place in (early, late))
                for least in (early + 3, late):  # `late` is not shorter than itself
                    places = [n for n in range(least, LENGTH + 1) if ends[n].endswith((first, then))]
                    asked = {"stop": (first, then), "min_new_tokens": least}
                    if places:
                        await ask_and_expect(bench, engine, prompt, path[: places[0]], StopReason.STOP, **asked)


def ended_by(path: tuple[int, ...], tokens: Sequence[int]) -> tuple[tuple[int, ...], StopReason]:
    """Return what is left of a path that ends with the first of these tokens, and why it ends."""
    place = next((number for number, token in enumerate(path) if token in tokens), None)
    return (path, StopReason.LENGTH) if place is None else (path[: place + 1], StopReason.STOP)


def text_ends(bench: InferBench, path: tuple[int, ...], model: Path | None = None) -> list[str]:
    """Return the text of the first 0, 1, 2, ... tokens of a path, as the tokenizer of a model folder spells them."""
    tokenizer = load_tokenizer(model or bench.model())
    return ["", *(tokenizer.decode(list(path[: n + 1]), skip_special_tokens=False) for n in range(len(path)))]


def _cut(draw: random.Random, ends: list[str]) -> str:
    """Return the text of one to five tokens somewhere in a path."""
    start = draw.randrange(len(ends) - 1)
    stop = min(len(ends) - 1, start + draw.randint(1, 5))
    return ends[stop][len(ends[start]) :]


def stopped(ends: list[str], path: tuple[int, ...], strings: list[str]) -> tuple[tuple[int, ...], StopReason]:
    """Return what is left of a path that stops at strings, and why it ends."""
    for count in range(1, len(ends)):
        if any(string in ends[count] for string in strings):
            return path[:count], StopReason.STOP
    return path, StopReason.LENGTH
