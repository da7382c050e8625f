"""What a request asks of its sampling holds also where little of it can show: greedy, and in a continuation.

Knows: greedy requests with filters, continued requests with every word a target claims.
Does not know: statistics (`sampling`), seeds across a continuation (`sampling_seeds`).
"""

from __future__ import annotations

from typing import Any

from areal_conformance.benches.infer import InferBench
from areal_conformance.check import Level, Row, family
from areal_conformance.checks.infer.sampling import claimed_cases, judge_output, rule
from areal_conformance.checks.infer.sampling_ends import PATHS, _path, ended_by
from areal_conformance.checks.infer.stop_texts import Case, end_as_told
from areal_conformance.oracles.infer_judging import expect_policies, prompts
from areal_conformance.outcome import expect

_FILTERS: dict[str, Any] = {
    "top_k": [{"top_k": top_k} for top_k in (1, 2, 40, 0)],
    "top_p": [{"top_p": top_p} for top_p in (1e-6, 0.3, 0.95, 1.0)],
    "min_p": Row("", [{"min_p": min_p} for min_p in (0.01, 0.5, 1.0, 0.0)], since=(1, 2)),
}


@family(
    "infer.sampling.greedy_{knob}",
    _FILTERS,
    level=Level.SINGLE,
    law=1,
    spec="infer#sampling",
    requires=("sampling.{knob}",),
)
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
            path = await _path(bench, engine, prompt)
            for prior in (1, 5):
                for token in dict.fromkeys((path[prior], path[prior + 4], path[-1], path[0])):
                    rest = path[prior:]
                    asked = {"num_prior": prior, "stop_token_ids": (token,), "max_new_tokens": len(rest)}
                    cases.append(((*prompt, *path[:prior]), asked, *ended_by(rest, (token,))))
        await end_as_told(bench, engine, cases)
