"""One request, one output: its tokens, their log-probs, its length and its end.

Knows: greedy decoding and plain temperature, which every engine has.
Does not know: filters, seeds and stop strings, which are claimed; concurrency.
"""

from __future__ import annotations

import contextlib
import copy
from functools import partial

from areal_conformance.benches.infer import InferBench
from areal_conformance.check import Level, check
from areal_conformance.oracles.infer_judging import (
    VOCABULARY,
    counted,
    expect_answered,
    expect_policies,
    expect_policy,
    prompts,
    raises,
    rest_of,
    well_formed,
)
from areal_conformance.outcome import expect
from areal_core.contract.data import StopReason
from areal_core.contract.errors import ArealError, PromptTooLong


@check("infer.output.greedy", level=Level.SINGLE, law=1, spec="infer#generate")
async def greedy(bench: InferBench) -> None:
    """Temperature 0 gives the likeliest token every time, for prompts of any length, and never the prompt itself."""
    async with bench.engine() as engine:
        for request in bench.asks(prompts(9), max_new_tokens=lambda number: 1 + 3 * number):
            await expect_answered(bench, engine, request)


@check("infer.output.logprobs", level=Level.SINGLE, law=1, spec="infer#generate")
async def logprobs(bench: InferBench) -> None:
    """Reported log-probs are those of the policy for the tokens drawn, at temperature 1, first and last included."""
    async with bench.engine() as engine:
        lengths = [1 + 10 * number for number in range(8)]
        for request in bench.asks(prompts(8, seed=2, longest=70), temperature=1.0, max_new_tokens=lengths):
            await expect_answered(bench, engine, request)


@check("infer.output.temperature", level=Level.SINGLE, law=1, spec="infer#generate")
async def temperature(bench: InferBench) -> None:
    """Log-probs are of the distribution drawn from: after the temperature, each request's own, in one batch too."""
    async with bench.engine() as engine:
        requests = bench.asks(prompts(6, seed=3), temperature=[0.7, 1.0, 1.6, 0.0, 0.3, 0.7], max_new_tokens=24)
        alone = [await bench.generate(engine, request) for request in requests]
        together = await bench.together(engine, requests)
    expect_policies(bench, zip([*alone, *together], [*requests, *requests], strict=True))


@check("infer.output.budget", level=Level.SINGLE, law=1, spec="infer#generate")
async def budget(bench: InferBench) -> None:
    """An output that does not end has exactly `max_new_tokens` tokens and the stop reason `length`."""
    async with bench.engine() as engine:
        budgets = (1, 2, 3, 16, 63, 64, 65)
        requests = [bench.ask(5, 9, 4 + n, name=f"r{n}", max_new_tokens=count) for n, count in enumerate(budgets)]
        together = await bench.together(engine, requests)
        results = [await bench.generate(engine, requests[0]), *together]
    for result, request in zip(results, [requests[0], *requests], strict=True):
        wanted = request.sampling.max_new_tokens
        got = (len(result.output_ids), result.stop_reason)
        expect(got == (wanted, StopReason.LENGTH), f"max_new_tokens {wanted} must give {wanted} and length, got {got}")
        expect_policy(bench, result, request)


@check("infer.output.context_end", level=Level.SINGLE, law=1, spec="infer#generate")
async def context_end(bench: InferBench) -> None:
    """An output ends, as `length`, when prompt and output fill the context to the last token, and not before."""
    async with bench.engine(context_length=32) as engine:
        for length in (31, 30, 25, 1):
            ids = tuple(2 + (7 * place) % 60 for place in range(length))
            request = bench.ask(*ids, name=f"prompt-{length}", max_new_tokens=64, temperature=1.0)
            result = await bench.generate(engine, request)
            got, left = (len(result.output_ids), result.stop_reason), 32 - length
            told = f"a prompt of {length} in a context of 32 leaves {left} tokens, ended by length; got {got}"
            expect(got == (left, StopReason.LENGTH), told)
            expect_policy(bench, result, request)


@check("infer.output.prompt_too_long", level=Level.SINGLE, law=5, spec="infer#generate")
async def prompt_too_long(bench: InferBench) -> None:
    """A prompt that leaves no room for one token is refused with PromptTooLong, and harms nobody else."""
    async with bench.engine(context_length=32) as engine:
        beside = bench.ask(5, 9, name="beside", max_new_tokens=20)
        call = bench.call(engine.generate(beside))
        for length in (32, 33, 100):
            ids = tuple(2 + place % 60 for place in range(length))
            request = bench.ask(*ids, max_new_tokens=1)
            told = f"a prompt of {length} tokens in a context of 32"
            await raises(PromptTooLong, partial(engine.generate, request), told)
        expect_policies(bench, [((await bench.results([call]))[0], beside)])
        status = await engine.status()
        expect(status.num_running == status.num_waiting == 0, f"refused requests must not linger: {status}")


@check("infer.output.unfit_request", level=Level.SINGLE, law=5, spec="infer#generate")
async def unfit_request(bench: InferBench) -> None:
    """An empty prompt or an id outside the vocabulary is refused with a typed error; a strange stop harms nobody."""
    async with bench.engine() as engine:
        beside = bench.ask(5, 9, name="beside", max_new_tokens=40)
        call = bench.call(engine.generate(beside))
        unfit = {
            "an empty prompt": bench.ask(),
            "an id one past the vocabulary": bench.ask(5, VOCABULARY),
            "a negative id": bench.ask(5, -1, 9),
        }
        for told, request in unfit.items():
            await raises(ArealError, partial(engine.generate, request), f"generate for {told}")
        strange = bench.ask(5, 9, name="strange", stop_token_ids=(VOCABULARY,), min_new_tokens=3)
        with contextlib.suppress(ArealError):  # refused, or a token that never comes
            expect_policy(bench, await bench.generate(engine, strange), bench.ask(5, 9))
        expect_policy(bench, (await bench.results([call]))[0], beside)
        await expect_answered(bench, engine, bench.ask(6, 9, name="later"))
        status = await engine.status()
        expect(status.num_running == status.num_waiting == 0, f"refused requests must not linger: {status}")


@check("infer.output.end_token", level=Level.SINGLE, law=1, spec="infer#generate")
async def end_token(bench: InferBench) -> None:
    """The model's end token ends the output, is its last token, and is what the stop reason `stop` says."""
    folder = bench.model(ends=True)
    async with bench.engine(model=folder) as engine:
        requests = bench.asks(prompts(16), temperature=1.0, max_new_tokens=48)
        results = await bench.together(engine, requests)
        await bench.update(engine, bench.weights(folder).tell(1))
        ending = bench.ask(5, 9, name="ending")
        last = await bench.generate(engine, ending)
    for result, request in zip(results, requests, strict=True):
        well_formed(result, request)
        got = (len(result.output_ids), result.stop_reason)
        if 1 in result.output_ids:
            place = result.output_ids.index(1) + 1
            expect(got == (place, StopReason.STOP), f"token {place} is the end token: must stop there, got {got}")
        else:
            expect(got == (48, StopReason.LENGTH), f"no end token came, so 48 tokens and length; got {got}")
        expect_policy(bench, result, request, model=folder)
    expect(any(result.stop_reason is StopReason.STOP for result in results), "no output of 16 met its end token")
    got_last = (last.output_ids, last.stop_reason)
    expect(got_last == ((1,), StopReason.STOP), f"only the end token can come: (1,) and stop expected, got {got_last}")


@check("infer.output.continued", level=Level.SINGLE, law=1, spec="infer#generate")
async def continued(bench: InferBench) -> None:
    """A request continued with what it had gives the rest of the whole, and does not return the part it was given."""
    async with bench.engine() as engine:
        request = bench.ask(5, 9, 30, max_new_tokens=30)
        whole = await bench.generate(engine, request)
        for cut in (1, 7, 29):
            more = rest_of(request, whole.output_ids, cut)
            rest = await counted(bench, engine, more)
            expect_policy(bench, rest, more)
            got, due = len(rest.output_ids), 30 - cut
            expect(got == due, f"{cut} of 30 tokens were prior, max_new_tokens is {due}: so many must come, got {got}")


@check("infer.output.request_unchanged", level=Level.SINGLE, law=1, spec="infer#generate")
async def request_unchanged(bench: InferBench) -> None:
    """An engine does not change the request it is given: sent again, it gives the same greedy output."""
    async with bench.engine() as engine:
        request = bench.ask(5, 9, 12, max_new_tokens=16)
        before = copy.deepcopy(request)
        results = [await bench.generate(engine, request) for _ in range(3)]
    expect(request == before, f"the request was {before}, after generate it is {request}")
    outputs = [result.output_ids for result in results]
    expect(len({*outputs}) == 1, f"one greedy request sent three times gave {outputs}")
    expect_policies(bench, ((result, request) for result in results))
