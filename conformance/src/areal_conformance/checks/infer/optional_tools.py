"""Tool calls are read from an output: which, with which arguments, and what is left for the user.

A target that claims it chooses, in its adapter's options for `tools.parse`, the parser of the form that Hermes and
Qwen models write: one JSON object with name and arguments between <tool_call> and </tool_call>.

Knows: outputs in that form, whole and broken.
Does not know: other forms.
"""

from __future__ import annotations

import json
from typing import Any

from areal_conformance.benches.infer import InferBench
from areal_conformance.check import Level, check
from areal_conformance.oracles.infer_judging import expect_policy
from areal_conformance.outcome import expect
from areal_core.contract.optional import ToolParse

TOOLS = ("tools.parse",)
TOOL_LIST: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Compute {name}.",
            "parameters": {"type": "object", "properties": {key: {"type": kind} for key, kind in parameters.items()}},
        },
    }
    for name, parameters in {
        "add": {"a": "number", "b": "number"},
        "search": {"query": "string", "options": "object"},
    }.items()
]
ADD = {"name": "add", "arguments": {"a": 1, "b": -2.5}}
SEARCH = {
    "name": "search",
    "arguments": {"query": 'a "quoted" \u00e9 </tool>\n', "options": {"deep": [1, {"x": None}]}},
}


def written(*calls: dict[str, Any]) -> str:
    """Return calls as a model writes them."""
    return "\n".join(f"<tool_call>\n{json.dumps(call)}\n</tool_call>" for call in calls)


@check("infer.tools.parse", level=Level.SINGLE, law=8, spec="infer#tool-calls", requires=TOOLS, since=(1, 2))
async def parse(bench: InferBench) -> None:
    """Each call comes with its name and its arguments, in the order written, and the text before them as content."""
    cases = (
        (written(ADD), "", (ADD,)),
        (written(SEARCH), "", (SEARCH,)),
        (written(ADD, SEARCH, ADD), "", (ADD, SEARCH, ADD)),
        (f"Let me see.\n{written(ADD)}", "Let me see.", (ADD,)),
        (written({"name": "add", "arguments": {}}), "", ({"name": "add", "arguments": {}},)),
    )
    async with bench.engine(*TOOLS) as engine:
        found = [await _parse(engine, text) for text, _, _ in cases]
    for (text, content, calls), parsed in zip(cases, found, strict=True):
        got = [{"name": call.name, "arguments": json.loads(call.arguments)} for call in parsed.calls]
        expect(got == list(calls), f"of {text!r} the calls {list(calls)} were written, {got} were read")
        said = parsed.content
        expect(said.strip() == content, f"of {text!r} {content!r} is said to the user, not {said!r}")


@check("infer.tools.none", level=Level.SINGLE, law=8, spec="infer#tool-calls", requires=TOOLS, since=(1, 2))
async def none(bench: InferBench) -> None:
    """Text without a call is content as it is, and a broken call is no call; neither is an error."""
    plain = ("The sum is 3.", '{"name": "add", "arguments": {"a": 1}}', "")
    half = ('<tool_call>\n{"name": "add", "arguments": {"a": 1', '<tool_call>\n{"name": "add", }\n</tool_call>')
    async with bench.engine(*TOOLS) as engine:
        found = [await _parse(engine, text) for text in (*plain, *half)]
    for text, parsed in zip((*plain, *half), found, strict=True):
        expect(not parsed.calls, f"{text!r} holds no whole call, {parsed.calls} were read")
        expect(text in half or parsed.content == text, f"{text!r} is content, not {parsed.content!r}")


@check("infer.tools.pure", level=Level.SINGLE, law=1, spec="infer#tool-calls", requires=TOOLS, since=(1, 2))
async def pure(bench: InferBench) -> None:
    """What is read depends on the text and the tools alone, and requests that run meanwhile feel nothing of it."""
    async with bench.engine(*TOOLS) as engine:
        request = bench.ask(5, 9, 7, max_new_tokens=60)
        running = bench.call(engine.generate(request))
        await bench.until_generated(engine, 3)
        first = [await _parse(engine, text) for text in (written(SEARCH), written(ADD), "no call", written(SEARCH))]
        (result,) = await bench.results([running])
        again = await _parse(engine, written(ADD))
    expect(first[0] == first[3], f"the same text was read as {first[0]} and then as {first[3]}")
    expect(first[1] == again, f"the same text was read as {first[1]} and later as {again}")
    expect(not first[2].calls, f"text without a call was read as {first[2]} after texts with calls")
    expect(len(result.output_ids) == 60, f"60 tokens were asked for, {len(result.output_ids)} came: a text was read")
    expect_policy(bench, result, request)


async def _parse(engine: Any, text: str) -> ToolParse:  # Any: an optional method of the engine
    parsed: ToolParse = await engine.parse_tool_calls(text, TOOL_LIST)
    return parsed
