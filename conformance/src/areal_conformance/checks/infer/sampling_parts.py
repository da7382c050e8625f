"""What a request asks of its sampling holds where little of it shows: greedy, continued, at the ends of a stop string.

Knows: greedy requests with filters, continued requests with every word a target claims; greedy paths without stop
strings as the truth, and texts that differ from them in one place; control tokens, which have a text too.
Does not know: statistics (`sampling`), seeds across a continuation (`sampling_seeds`), short strings (`sampling_ends`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from areal_conformance.benches.infer import InferBench
from areal_conformance.check import Row, family
from areal_conformance.checks.infer.sampling import claimed_cases, judge_output, rule
from areal_conformance.checks.infer.sampling_ends import (
    END,
    LENGTH,
    PATHS,
    ask_and_expect,
    ended_by,
    expect_end,
    path_of,
    stopped,
    text_ends,
)
from areal_conformance.oracles.infer_judging import expect_policies, prompts
from areal_conformance.outcome import Inconclusive, expect
from areal_core.contract.data import StopReason
from areal_core.contract.inference import InferenceEngine

Case = tuple[tuple[int, ...], dict[str, Any], tuple[int, ...], StopReason]
"""Prompt, what is asked besides, the output expected and why it ends. Any: fields of SamplingParams."""

LONG_ONES = (9, 12, 15, 20)
NEVER = "\u00e9"
"""A letter that no token of the tiny models holds."""
CONTROL = 2
"""A control token of the tiny models that ends nothing by itself."""


async def end_as_told(bench: InferBench, engine: InferenceEngine, cases: Sequence[Case]) -> None:
    """Ask all at once and expect every output and its end."""
    asked = [
        bench.ask(*prompt, name=f"r{number}", **{"max_new_tokens": LENGTH, **given})
        for number, (prompt, given, _, _) in enumerate(cases)
    ]
    results = await bench.together(engine, asked)
    for result, request, (_, _, wanted, reason) in zip(results, asked, cases, strict=True):
        expect_end(result, request, wanted, reason)


_FILTERS: dict[str, Any] = {
    "top_k": [{"top_k": top_k} for top_k in (1, 2, 40, 0)],
    "top_p": [{"top_p": top_p} for top_p in (1e-6, 0.3, 0.95, 1.0)],
    "min_p": Row("", [{"min_p": min_p} for min_p in (0.01, 0.5, 1.0, 0.0)], since=(1, 2)),
}


@family("infer.sampling.greedy_{knob}", _FILTERS, requires=("sampling.{knob}",), **rule.keywords)
async def greedy(bench: InferBench, cases: list[dict[str, Any]]) -> None:
    """With temperature 0 {knob} changes nothing: the best token, and its log-prob at temperature 1 without filters."""
    async with bench.engine(*(f"sampling.{name}" for name in cases[0])) as engine:
        each = [(ids, case) for ids in prompts(3, seed=12, longest=8) for case in cases]
        asked = [bench.ask(*ids, name=f"r{number}", **case) for number, (ids, case) in enumerate(each)]
        together = await bench.together(engine, asked)
        alone = [await bench.generate(engine, request) for request in asked[: len(cases)]]
    expect_policies(bench, zip([*together, *alone], [*asked, *asked[: len(cases)]], strict=True))


@rule("infer.sampling.continued")
async def continued(bench: InferBench) -> None:
    """A continued request is drawn as it asks, from its first new token to its last: temperature, top_k and top_p."""
    drawn: list[dict[str, Any]] = [{"temperature": 0.3}, {"temperature": 1.0}, {"temperature": 2.5}]
    drawn += [{"temperature": 2.5, "top_k": 2}, {"temperature": 1.0, "top_k": 5}, {"temperature": 2.5, "top_p": 0.4}]
    claims, cases = claimed_cases(bench, [*drawn, {"temperature": 2.0, "top_k": 8, "top_p": 0.7}])
    async with bench.engine(*claims) as engine:
        asked = [
            bench.ask(
                *(*ids, *range(20, 20 + prior)),
                name=f"{number}/{prior}",
                num_prior=prior,
                max_new_tokens=10,
                **case,
                **bench.seeded(70 + number),
            )
            for number, (ids, case) in enumerate(zip(prompts(len(cases), seed=13, longest=9), cases, strict=True))
            for prior in (1, 7, 40)
        ]
        results = await bench.together(engine, asked)
    for request, result in zip(asked, results, strict=True):
        judge_output(bench, request, result)
        got = len(result.output_ids)
        expect(got == 10, f"{request.num_prior} prior tokens and 10 more asked for: {got} came, {result.stop_reason}")


@rule("infer.sampling.continued_stop_tokens", requires=("sampling.stop_tokens",))
async def continued_stop_tokens(bench: InferBench) -> None:
    """Stop tokens end a continued request where they come anew; those among its prior tokens do not count."""
    async with bench.engine("sampling.stop_tokens") as engine:
        cases: list[Case] = []
        for prompt in PATHS:
            path = await path_of(bench, engine, prompt)
            for prior in (1, 5):
                for token in dict.fromkeys((path[prior], path[prior + 4], path[-1], path[0])):
                    rest = path[prior:]
                    asked = {"num_prior": prior, "stop_token_ids": (token,), "max_new_tokens": len(rest)}
                    cases.append(((*prompt, *path[:prior]), asked, *ended_by(rest, (token,))))
        await end_as_told(bench, engine, cases)


@rule("infer.sampling.stop_strings_long", requires=("sampling.stop_strings",))
async def stop_strings_long(bench: InferBench) -> None:
    """A long stop string ends an output where all of it is there; one that differs in any place does not."""
    async with bench.engine("sampling.stop_strings") as engine:
        cases: list[Case] = []
        for number, prompt in enumerate(PATHS):
            path = await path_of(bench, engine, prompt)
            ends = text_ends(bench, path)
            for size in (LONG_ONES[number], LONG_ONES[-1 - number]):
                text = ends[-2][-size:]
                if len(text) < size:
                    continue
                place = next(count for count in range(1, len(ends)) if text in ends[count])
                near = tuple(text[:at] + NEVER + text[at + 1 :] for at in (0, 1, size // 2, size - 2, size - 1))
                cases.append((prompt, {"stop": near}, path, StopReason.LENGTH))
                cases += [(prompt, {"stop": stop}, path[:place], StopReason.STOP) for stop in ((text,), (*near, text))]
        if not cases:
            raise Inconclusive(f"no greedy path of {LENGTH} tokens has {LONG_ONES[0]} letters")
        await end_as_told(bench, engine, cases)


@rule("infer.sampling.stop_strings_control", requires=("sampling.stop_strings",))
async def stop_strings_control(bench: InferBench) -> None:
    """A stop string is looked for in the whole text of an output, that of its control tokens included."""
    asked: list[tuple[int, dict[str, Any]]] = [(CONTROL, {})]
    if bench.target.claimed("sampling.ignore_eos"):
        asked.append((END, {"ignore_eos": True}))
    async with bench.engine("sampling.stop_strings", "sampling.ignore_eos") as engine:
        for token, given in asked:
            await bench.update(engine, bench.weights().tell(token))
            path = (token,) * LENGTH
            text = text_ends(bench, path)[1]
            for string in (text, text[1:-1], text[-1] + text[:2], 3 * text):
                wanted, reason = stopped(text_ends(bench, path), path, [string])
                await ask_and_expect(bench, engine, (5, 9, 7), wanted, reason, stop=("@never@", string), **given)


@rule("infer.sampling.stop_strings_across_min", requires=("sampling.stop_strings", "sampling.min_tokens"))
async def stop_strings_across_min(bench: InferBench) -> None:
    """A stop string that begins before min_new_tokens and is complete after it ends the output there."""
    async with bench.engine("sampling.stop_strings", "sampling.min_tokens") as engine:
        cases: list[Case] = []
        for prompt in PATHS:
            path = await path_of(bench, engine, prompt)
            ends = text_ends(bench, path)
            for least, before, after in ((3, 1, 1), (4, 3, 2), (6, 2, 1), (8, 6, 4), (12, 11, 3)):
                text, place = ends[least + after][len(ends[least - before]) :], least + after
                if not text or text in ends[place - 1]:
                    continue
                asked = {"stop": (text,), "min_new_tokens": least}
                cases.append((prompt, asked, path[:place], StopReason.STOP))
                prior = least // 2
                asked = {**asked, "num_prior": prior, "max_new_tokens": LENGTH - prior}
                cases.append(((*prompt, *path[:prior]), asked, path[prior:place], StopReason.STOP))
        if not cases:
            raise Inconclusive("no greedy path has a string that first comes across a minimum length")
        await end_as_told(bench, engine, cases)
