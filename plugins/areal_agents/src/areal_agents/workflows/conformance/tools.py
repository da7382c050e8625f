"""What the conformance suite must know of the workflow `tools`.

Knows: tools that answer in letters; what an episode shows of each option.
Does not know: any check.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from areal_agentic.sandbox import SandboxError
from areal_agents.workflows.conformance.episodes import ROW, ROWS, between, first_asked, heard, said_by, spoken
from areal_agents.workflows.conformance.renderers import built
from areal_conformance.adapter import Adapter, Bounds, Variant
from areal_core.contract.errors import ArealError, GenerationFailed
from areal_core.contract.optional import ToolCall, ToolParse

if TYPE_CHECKING:
    from areal_core.contract.workflow import RolloutWorkflow


def echo(word: str) -> str:
    """Say a word again.

    Args:
        word: what is said.
    """
    return f"{word}-said-"


async def counted(words: list[str], times: int = 2) -> dict[str, int]:
    """Count words."""
    return dict.fromkeys(words, times)


def lost(word: str) -> str:
    """Find nothing."""
    raise LookupError(word)


def quits(word: str) -> str:
    """End everything."""
    sys.exit(word)


def homeless(word: str) -> str:
    """Find no place to work in."""
    raise SandboxError(f"no sandbox for {word}", why="all are taken", fix="none")


async def never(word: str) -> str:
    """Say nothing, ever."""
    await asyncio.Event().wait()
    return word


async def patient(word: str) -> str:
    """Say a word that `hasty` has said, many turns of the event loop after it."""
    while word not in _SAID:  # noqa: ASYNC110  a list, since an event belongs to one loop
        await asyncio.sleep(0.001)
    _SAID.remove(word)
    for _ in range(_TURNS):
        await asyncio.sleep(0)
    return f"{word}-late-"


async def hasty(word: str) -> str:
    """Say a word at once."""
    _SAID.append(word)
    return f"{word}-soon-"


async def _side_by_side(workflow: RolloutWorkflow) -> list[str]:
    """Return what two calls of one answer are answered with, the first of which waits for the second."""
    given = '{"word": "ab"}'
    session, _ = await said_by(workflow, f"patient({given}) & hasty({given})", "lost()")
    return between(session)


async def _called(workflow: RolloutWorkflow) -> list[Any]:
    """Return what each of these calls is answered with, and the numbers of calls and errors. Any: texts and numbers."""
    session, made = await said_by(workflow, *(f"{name}({given})" for name, given in _CALLS), "lost()")
    return [*between(session), made.metrics["tools/calls"], made.metrics["tools/errors"]]


async def _homeless(workflow: RolloutWorkflow) -> str:
    """Return what an episode fails with whose tool has no place to work in: nothing, if the policy is told instead."""
    try:
        await said_by(workflow, 'homeless({"word": "ab"})', "lost()")
    except ArealError as error:
        return type(error).__name__
    return ""


async def _reckoned(workflow: RolloutWorkflow) -> list[str]:
    """Return what these expressions are said to be."""
    session, _ = await said_by(workflow, *(f'calculator({{"expression": "{one}"}})' for one in _SUMS), "lost()")
    return between(session)


async def _programs(workflow: RolloutWorkflow) -> list[str]:
    """Return what programs of two episodes print: the first one, and one after others that did not end well."""
    first = await heard(workflow)
    for ends_badly in (_lost, _cancelled):
        await ends_badly(workflow)
    return [*first, *await heard(workflow)]


async def _lost(workflow: RolloutWorkflow) -> None:
    """Make an episode whose policy is lost behind its first call."""
    from areal_conformance.benches.workflow import ScriptedSession, paying
    from areal_conformance.benches.workflow_vocabularies import base_tokenizer

    tokenizer = base_tokenizer()
    script = [spoken(tokenizer, 0, "ab"), GenerationFailed("the engine lost it")]
    session = ScriptedSession(script=lambda turn: script[turn], judge=paying(), tokenizer=tokenizer)
    with suppress(GenerationFailed):
        await workflow.arun_episode(session, ROW)


async def _cancelled(workflow: RolloutWorkflow) -> None:
    """Cancel an episode behind its first call."""
    from areal_conformance.benches.workflow import ScriptedSession, paying
    from areal_conformance.benches.workflow_vocabularies import base_tokenizer

    tokenizer, there, never = base_tokenizer(), asyncio.Event(), asyncio.Event()

    async def stays(turn: int) -> None:
        if turn:
            there.set()
            await never.wait()

    session = ScriptedSession(
        script=lambda turn: spoken(tokenizer, turn, "ab"), judge=paying(), tokenizer=tokenizer, at_generate=stays
    )
    task = asyncio.ensure_future(workflow.arun_episode(session, ROW))
    waiting = asyncio.ensure_future(there.wait())
    await asyncio.wait((task, waiting), return_when=asyncio.FIRST_COMPLETED)
    for one in (task, waiting):
        one.cancel()
    await asyncio.wait((task, waiting))


async def _read_by_engine(workflow: RolloutWorkflow) -> list[Any]:
    """Return what the engine is given to read, texts and tools, and what is told behind answers then. Any: as it is."""
    from areal_conformance.benches.workflow import ScriptedSession, paying
    from areal_conformance.benches.workflow_vocabularies import base_tokenizer

    given: list[Any] = []

    class Reading(ScriptedSession):
        async def parse_tool_calls(self, text: str, tools: Sequence[Mapping[str, Any]]) -> ToolParse:
            given.append((text, list(tools)))
            return ToolParse(content="", calls=[ToolCall(name="echo", arguments='{"word": "x"}')])

    tokenizer = base_tokenizer()
    session = Reading(script=lambda turn: spoken(tokenizer, turn, "ab"), judge=paying(), tokenizer=tokenizer)
    await workflow.arun_episode(session, ROW)
    return [*given, *between(session)]


_TURNS = 100
"""More than a call needs to be told once it has ended."""
_SAID: list[str] = []
"""What `hasty` said, and `patient` has not said yet."""
_CALLS = {
    ("echo", '{"word": "ab"}'): "ab-said-",
    ("counted", '{"words": ["ab", "\u00e9"]}'): '{"ab":2,"\u00e9":2}',
    ("counted", '{"words": [], "times": 3}'): "{}",
    ("lost", '{"word": "ab"}'): "Error: LookupError: ab",
    ("quits", '{"word": "ab"}'): "Error: SystemExit: ab",
    ("echo", "[1]"): "Error: the arguments are no JSON object: [1]",
    ("echo", '{"word": 3}'): "Error: word: Input should be a valid string",
    ("search", "{}"): "Error: there is no tool 'search'; there are echo, counted, lost, quits",
}
"""A call -> what it is answered with."""
_SUMS = {
    "1 + 2 * 3": "7",
    "-(7 // 2) - +1": "-4",
    "7 % 4": "3",
    "1 / 4": "0.25",
    "6 / 3": "2",
    "2 ** 10": "1024",
    "0.25 ** 0.5": "0.5",
    "2 ** -1": "0.5",
    "1e300": "1e+300",
    "(-8) ** 0.5": "Error: the result is no real number",
    "9 ** 9 ** 9": "Error: the result is too large",
    "10 ** 1000 * 10 ** 1000": "Error: the result is too large",
    "1 / 0": "Error: division by zero",
    "True": "Error: 'True' is no arithmetic expression",
    "1 if 1 else 2": "Error: '1 if 1 else 2' is no arithmetic expression",
}
"""An expression -> what it is."""
_HERE = "areal_agents.workflows.conformance.tools"
_CUT = "[4 more characters left out]"
_ECHO = {
    "type": "function",
    "function": {
        "name": "echo",
        "description": "Say a word again.",
        "parameters": {
            "additionalProperties": False,
            "properties": {"word": {"type": "string", "description": "what is said."}},
            "required": ["word"],
            "type": "object",
        },
    },
}
TOOLS = Adapter(
    build=built("tools"),
    options={"": {"renderer": "calling", "tools": [f"{_HERE}:echo"], "max_turns": 2}},
    rows=ROWS,
    variants={
        "max_turns": Variant(options={"max_turns": 3}, shows=heard, gives=["n-said-\u00e9-said-", "s-said-b-said-"]),
        "max_chars": Variant(options={"max_chars": 3}, shows=heard, gives=[f"n-s\n{_CUT}\u00e9-s\n{_CUT}"]),
        "timeout_s": Variant(
            options={"tools": [f"{_HERE}:never"], "timeout_s": 0.25},
            shows=heard,
            gives=["Error: never took longer than 0.25 s" * 2],
            again=False,  # each answer would take that long
        ),
        "calculator": Variant(
            options={"tools": ["calculator"], "max_turns": len(_SUMS) + 1},
            shows=_reckoned,
            gives=[*_SUMS.values()],
            again=False,
        ),
        "functions": Variant(
            options={
                "tools": [f"{_HERE}:{name}" for name in ("echo", "counted", "lost", "quits")],
                "max_turns": len(_CALLS) + 1,
            },
            shows=_called,
            gives=[*_CALLS.values(), len(_CALLS), 5.0],
            again=False,
        ),
        "homeless": Variant(
            options={"tools": [f"{_HERE}:homeless"]}, shows=_homeless, gives="SandboxError", again=False
        ),
        "side_by_side": Variant(
            options={"tools": [f"{_HERE}:patient", f"{_HERE}:hasty"]},
            shows=_side_by_side,
            gives=["ab-late-ab-soon-"],
            again=False,
        ),
        "calls": Variant(
            options={"calls": "engine"},
            shows=_read_by_engine,
            gives=[*[("ab<|endoftext|>", [_ECHO])] * 2, "x-said-"],
        ),
        "python": Variant(
            options={"tools": ["python"], "sandbox": "telling", "image": "img", "memory_mb": 64, "timeout_s": 3.0},
            shows=_programs,
            gives=["".join(f"{letter} in 64 MiB, 3 s, img, 0 others open" for letter in "n\u00e9")] * 2,
            again=False,
        ),
        "system": Variant(options={"system": "beg-"}, shows=first_asked, gives="echo-beg-stone>"),
    },
    bounds={
        "tools": Bounds(refuses=([],)),
        "max_turns": Bounds(takes=(1,), refuses=(0,)),
        "calls": Bounds(takes=("renderer", "engine"), refuses=("nobody",)),
        "timeout_s": Bounds(takes=(1e-9,), refuses=(0.0,)),
        "max_chars": Bounds(takes=(1,), refuses=(0,)),
        "memory_mb": Bounds(takes=(16,), refuses=(15,)),
    },
    without_effect={
        "renderer_options": "the renderer's own",
        "sandbox_options": "the sandbox's own",
        "keep_thoughts": "an answer that calls has no thoughts here; `multi_turn` shows it",
    },
)
