"""Structured output: every text fits, tokens come from the masked distribution, and neighbours feel nothing of it.

The texts asked for by a regular expression are few enough to be listed, so the truth about which tokens may come
next needs no grammar engine. Tokens of the tiny models spell one character each.

Knows: regular expressions, JSON schemas, structures in company, cut short, continued, and broken ones.
Does not know: how an engine follows a grammar.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import attrs

from areal_conformance.benches.infer import InferBench
from areal_conformance.check import Level, check
from areal_conformance.checks.infer.sampling import drawn_from
from areal_conformance.oracles.infer_judging import LOGPROB_ATOL, expect_policies, prompts, raises, well_formed
from areal_conformance.outcome import expect
from areal_core.contract.data import StopReason
from areal_core.contract.errors import ArealError, CapabilityError
from areal_core.contract.inference import Generation, GenerationRequest, Grammar, Structure

STRUCTURED = ("sampling.structured",)
WIDE = 128
"""Token ids of a model whose characters hold braces."""
END = 1
LETTERS, DIGITS = "abcde", "0123456789"
LANGUAGES: dict[str, tuple[str, ...]] = {
    "yes|no|maybe": ("yes", "no", "maybe"),
    "[a-e]{2}[0-9]": tuple(a + b + c for a, b, c in itertools.product(LETTERS, LETTERS, DIGITS)),
    "(ab|abc)d?": ("ab", "abd", "abc", "abcd"),
    "a{7}": ("aaaaaaa",),
}
"""Regular expression -> every text it allows."""
SCHEMAS: tuple[dict[str, Any], ...] = (
    {"enum": ["red", "green", 7]},
    {"type": "array", "items": {"type": "boolean"}},
    {
        "type": "object",
        "properties": {"name": {"enum": ["x", "yz"]}, "ok": {"type": "boolean"}},
        "required": ["name", "ok"],
        "additionalProperties": False,
    },
)
rule = partial(check, level=Level.SINGLE, law=1, spec="infer#structure", requires=STRUCTURED, since=(1, 2))


@rule("infer.structured.regex")
async def regex(bench: InferBench) -> None:
    """Every output is a text the expression allows, its log-probs those of the distribution over allowed tokens."""
    async with bench.engine(*STRUCTURED, model=_folder(bench)) as engine:
        asked = [
            _structured(bench, ids, pattern, f"{number}/{heat}", temperature=heat, seed=_seed(bench, 40 + number))
            for number, (ids, pattern) in enumerate(zip(prompts(12, seed=31, longest=9), 3 * [*LANGUAGES], strict=True))
            for heat in (0.0, 1.0, 2.0)
        ]
        results = await bench.together(engine, asked)
    for request, result in zip(asked, results, strict=True):
        _judge(bench, request, result)
        expect(result.stop_reason is StopReason.STOP, f"{_told(request)}: ended by {result.stop_reason}, not whole")
    texts = {_text(bench, result.output_ids) for result in results}
    expect(len(texts) > len(LANGUAGES), f"{len(asked)} requests of {len(LANGUAGES)} expressions gave only {texts}")


@rule("infer.structured.json")
async def json_schema(bench: InferBench) -> None:
    """Every whole output is one JSON value that the schema allows."""
    async with bench.engine(*STRUCTURED, model=_folder(bench)) as engine:
        asked = [
            _structured(bench, ids, json.dumps(schema), f"{number}", temperature=heat, seed=_seed(bench, 80 + number))
            for number, (ids, schema) in enumerate(zip(prompts(9, seed=32, longest=9), 3 * SCHEMAS, strict=True))
            for heat in (0.0, 1.0)
        ]
        results = await bench.together(engine, asked)
    num_whole = 0
    for request, result in zip(asked, results, strict=True):
        well_formed(result, request, vocabulary=WIDE)
        if result.stop_reason is not StopReason.STOP:
            continue  # a schema may leave room for spaces without end
        num_whole += 1
        text = _text(bench, result.output_ids)
        assert request.structure is not None
        expect(_fits(text, json.loads(request.structure.text)), f"{_told(request)}: got {text!r}")
    expect(num_whole * 2 > len(asked), f"only {num_whole} of {len(asked)} outputs are whole")


@rule("infer.structured.company")
async def company(bench: InferBench) -> None:
    """A structure binds its own request alone: its neighbours, before, beside and after it, are the policy's own."""
    async with bench.engine(*STRUCTURED) as engine:
        plain = bench.asks(prompts(8, seed=33, longest=9), name="plain-", max_new_tokens=20)
        bound = [
            _structured(bench, ids, pattern, f"bound-{number}", temperature=1.0, seed=_seed(bench, number))
            for number, (ids, pattern) in enumerate(zip(prompts(8, seed=34, longest=9), 2 * [*LANGUAGES], strict=True))
        ]
        mixed = [request for pair in zip(plain, bound, strict=True) for request in pair]
        results = await bench.together(engine, mixed)
        after = [await bench.generate(engine, request) for request in plain[:3]]
    expect_policies(bench, zip([*results[::2], *after], [*plain, *plain[:3]], strict=True))
    for request, result in zip(bound, results[1::2], strict=True):
        expect(_text(bench, result.output_ids) in _texts(request), f"{_told(request)}: got {result.output_ids}")


@rule("infer.structured.cut")
async def cut(bench: InferBench) -> None:
    """A budget that ends a text in its middle leaves the beginning of one that is allowed, and the reason `length`."""
    async with bench.engine(*STRUCTURED, model=_folder(bench)) as engine:
        for budget in (1, 3, 7):
            request = _structured(bench, (5, 9, 7), "a{7}", f"cut-{budget}", max_new_tokens=budget)
            result = await bench.generate(engine, request)
            _judge(bench, request, result)
            got = (_text(bench, result.output_ids), result.stop_reason)
            wanted = ("a" * budget, StopReason.LENGTH)
            expect(got == wanted, f"{_told(request)}, {budget} tokens: expected {wanted}, got {got}")


@rule("infer.structured.continued", spec="infer#continued-requests")
async def continued(bench: InferBench) -> None:
    """A continued request goes on with the text its prior tokens began; an engine that cannot refuses it."""
    folder = _folder(bench)
    async with bench.engine(*STRUCTURED, model=folder) as engine:
        begun = dict(zip(LANGUAGES, ("ma", "c", "ab", "aaa"), strict=True))
        asked = [
            _structured(bench, (5, 9, 7), pattern, f"prior {text!r}", begun=text) for pattern, text in begun.items()
        ]
        try:
            await engine.generate(asked[0])
        except CapabilityError as error:
            bench.notes.append(f"continued requests with a structure are refused: {error.what}")
            return
        results = await bench.together(engine, asked)
    for request, result in zip(asked, results, strict=True):
        _judge(bench, request, result)


@rule("infer.structured.broken", law=8)
async def broken(bench: InferBench) -> None:
    """A structure that cannot be read is refused, not ignored, and the engine serves on."""
    async with bench.engine(*STRUCTURED, model=_folder(bench)) as engine:
        request = bench.ask(5, 9, 7, max_new_tokens=12)
        for grammar, text in ((Grammar.REGEX, "([a-z"), (Grammar.JSON_SCHEMA, "{"), (Grammar.JSON_SCHEMA, "not json")):
            asked = attrs.evolve(request, structure=Structure(grammar=grammar, text=text))
            await raises(ArealError, lambda asked=asked: engine.generate(asked), f"{grammar} {text!r}")  # type: ignore[misc]
        whole = _structured(bench, (5, 9, 7), "yes|no|maybe", "after")
        _judge(bench, whole, await bench.generate(engine, whole))


def _seed(bench: InferBench, number: int) -> int | None:
    return bench.seeded(number).get("seed")


def _folder(bench: InferBench) -> Path:
    """Return a model that spells braces and can end: where a text is whole nothing but its end may come."""
    return bench.model(ends=True, vocab_size=WIDE)


def _structured(
    bench: InferBench, ids: Sequence[int], text: str, name: str, begun: str = "", **sampling: Any
) -> GenerationRequest:
    """Return a request for a text of a regular expression, or of a schema if it is JSON. Any: sampling parameters."""
    grammar = Grammar.REGEX if text in LANGUAGES else Grammar.JSON_SCHEMA
    prior = _ids(bench, begun)
    given = {"max_new_tokens": 40, **sampling}
    request = bench.ask(*ids, *prior, name=name, num_prior=len(prior), **given)
    return attrs.evolve(request, structure=Structure(grammar=grammar, text=text))


def _judge(bench: InferBench, request: GenerationRequest, result: Generation) -> None:
    """Expect each token among those that lead to an allowed text, with the log-prob of the distribution over them."""
    well_formed(result, request, vocabulary=WIDE)
    folder, ids, output = _folder(bench), request.input_ids, result.output_ids
    first = len(ids) - request.num_prior
    rows = bench.oracle(folder).logits([*ids, *output])[len(ids) - 1 : -1]
    allowed_gap = bench.tolerance(atol=LOGPROB_ATOL).atol
    for place, (row, token, given) in enumerate(zip(rows, output, result.logprobs, strict=True)):
        text = _text(bench, [*ids[first:], *output[:place]])
        allowed = _allowed(bench, _texts(request), text)
        expect(token in allowed, f"{_told(request)}: token {token} after {text!r}, only {sorted(allowed)} may follow")
        ruled_out = set(range(len(row))) - allowed
        wanted = drawn_from(row, request.sampling, ids[:first], [*ids[first:], *output[:place]], ruled_out).logprobs
        right = f"among the {len(allowed)} allowed tokens it has {float(wanted[token]):.5f}"
        told = f"{_told(request)}: token {token} after {text!r} is reported with log-prob {given:.5f}; {right}"
        expect(abs(given - float(wanted[token])) <= allowed_gap, told)
        if request.sampling.temperature == 0:
            behind = float(wanted.max() - wanted[token])
            expect(behind <= allowed_gap, f"{_told(request)}: greedy token {token} after {text!r} is not the best one")


def _allowed(bench: InferBench, texts: Iterable[str], begun: str) -> set[int]:
    """Return the tokens after which one of the texts is still to be had; the end token where one is whole."""
    nexts = {text[len(begun) : len(begun) + 1] for text in texts if text.startswith(begun)}
    return {END if not character else _ids(bench, character)[0] for character in nexts}


def _texts(request: GenerationRequest) -> tuple[str, ...]:
    assert request.structure is not None
    return LANGUAGES[request.structure.text]


def _text(bench: InferBench, ids: Sequence[int]) -> str:
    """Return what tokens spell, without the end token."""
    kept = [token for token in ids if token != END]
    return bench.tokenizer(_folder(bench)).decode(kept) if kept else ""


def _ids(bench: InferBench, text: str) -> list[int]:
    return bench.tokenizer(_folder(bench)).encode(text, add_special_tokens=False) if text else []


def _told(request: GenerationRequest) -> str:
    assert request.structure is not None
    return f"request {request.request_id!r} for {request.structure.text}"


def _fits(text: str, schema: dict[str, Any]) -> bool:
    """Tell whether a text is JSON that one of SCHEMAS allows."""
    try:
        value = json.loads(text)
    except ValueError:
        return False
    if "enum" in schema:
        return value in schema["enum"]
    if schema["type"] == "array":
        return isinstance(value, list) and all(isinstance(item, bool) for item in value)
    if not isinstance(value, dict) or set(value) != {"name", "ok"}:
        return False
    return value["name"] in schema["properties"]["name"]["enum"] and value["ok"] in (True, False)
