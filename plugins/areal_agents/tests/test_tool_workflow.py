"""The workflow `tools`: calls are made and answered in turns, whatever the policy writes."""

from __future__ import annotations

import ast
import asyncio
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from areal_agentic.sandbox import Ending, Limits, Ran, SandboxError
from areal_agentic.tools import ToolError
from areal_agents.workflows.builtin import Programs, calculator
from areal_core.contract.errors import ConfigError, PromptTooLong
from areal_tasks.tiny_chat import CALCULATOR

from .talking import END, OPENS, REGISTRY, TOKENIZER, Talking, call, learned, made, whole

CODE = '<tool_call>\n{"name": "python", "arguments": {"code": "print(1)"}}\n</tool_call>'


def test_a_call_is_made_and_its_answer_read() -> None:
    """Question, call, result, answer in one sequence; the reward is that of the answer."""
    session = Talking(call("12 + 30"), "42")
    episode = made("tools", session)

    (trajectory,) = episode.trajectories
    text = whole(trajectory)
    assert '"description": "Evaluate an arithmetic expression."' in text
    told = f"\n<|im_start|>user\n<tool_response>\n42\n</tool_response>{END}\n{OPENS}"
    assert text.endswith(f"user\nab>{END}\n{OPENS}{call('12 + 30')}{END}{told}42{END}")
    assert learned(trajectory) == f"{call('12 + 30')}{END}42{END}"
    assert [value.completion for value in session.scored] == ["42"]
    counted = {"turns": 2.0, "tools/calls": 1.0, "tools/errors": 0.0, "judged": 1.0}
    assert dict(episode.metrics) == {
        **counted, "agent/requests": 2.0, "agent/trajectories": 1.0, "agent/restarted": 0.0,
    }  # fmt: skip


def test_calls_of_one_answer_are_answered_in_order() -> None:
    """Each by a message of its own, errors too."""
    both = f"{call('1 + 1')}\n{call('1 / 0')}\n{call('2', 'sqrt')}\n{call('3', key='number')}"
    episode = made("tools", Talking(both, "2"))

    responses = whole(episode.trajectories[0]).split("<tool_response>\n")[1:]
    assert [text.partition("\n</tool_response>")[0] for text in responses] == [
        "2",
        "Error: division by zero",
        "Error: there is no tool 'sqrt'; there are calculator",
        "Error: expression: Missing required argument; number: Unexpected keyword argument",
    ]
    assert (episode.metrics["tools/calls"], episode.metrics["tools/errors"]) == (4.0, 3.0)


@pytest.mark.parametrize("text", ["<tool_call>\n{broken\n</tool_call>", "no call", "<tool_call>", ""])
def test_what_is_no_call_is_an_answer(text: str) -> None:
    """A call that cannot be read ends the episode as what it is: a bad answer."""
    session = Talking(text)
    episode = made("tools", session)

    assert episode.metrics["turns"] == 1.0 and [value.completion for value in session.scored] == [text]


def test_an_episode_ends_with_its_last_turn_or_its_context() -> None:
    """Calls of the last turn are not made; where nothing more fits, what was said is judged."""
    last = made("tools", Talking(call("1 + 1")), max_turns=3)
    full = made("tools", Talking(call("1 + 1"), PromptTooLong("no room")))

    assert (last.metrics["turns"], last.metrics["tools/calls"]) == (3.0, 2.0)
    assert (full.metrics["turns"], full.metrics["tools/calls"]) == (1.0, 1.0)


def test_the_engines_parser_may_read_the_calls() -> None:
    """It is given the output with its special tokens."""
    episode = made("tools", Talking("call it"), calls="engine", max_turns=2)

    assert "<tool_response>\n2\n</tool_response>" in whole(episode.trajectories[0])


def test_functions_of_a_file_are_tools(tmp_path: Path) -> None:
    """By their names, with what their docstrings say."""
    (tmp_path / "mine.py").write_text(
        "from __future__ import annotations\n"
        "KNOWN: dict[str, int] = {'a': 1}\n"
        "def look(word: str, again: bool = False) -> int:\n    '''Look it up.'''\n    return KNOWN[word]\n"
    )
    episode = made(
        "tools", Talking(call("a", "look", "word"), call("b", "look", "word"), "x"), tools=[f"{tmp_path}/mine.py:look"]
    )

    text = whole(episode.trajectories[0])
    assert '"description": "Look it up."' in text and '"again": {"default": false, "type": "boolean"}' in text
    assert "<tool_response>\n1\n" in text and "<tool_response>\nError: KeyError: 'b'\n" in text


@pytest.mark.parametrize(
    ("tools", "told"),
    [
        (["search"], "names 'search'"),
        (["nowhere.py:f"], "nowhere.py:f, which cannot be called"),
        (["json:nothing"], "json:nothing, which cannot be called"),
        (["json:__name__"], "json:__name__, which cannot be called"),
        (["calculator", "calculator"], "two tools have one name"),
    ],
)
def test_a_tool_that_is_none_is_refused(tools: list[str], told: str) -> None:
    """When the run is planned."""
    with pytest.raises(ConfigError, match=told):
        made("tools", Talking("x"), tools=tools)


class Box:
    """A provider of one sandbox that ends every program in the same way; counts what is open."""

    def __init__(self, ran: Ran | Exception) -> None:
        self.ran, self.files, self.open_now, self.num_opened = ran, dict[str, bytes](), 0, 0

    def check(self) -> None: ...

    async def open(self, limits: Limits, *, image: str = "") -> Box:
        self.limits, self.image = limits, image
        self.open_now += 1
        self.num_opened += 1
        return self

    async def write(self, path: str, data: bytes) -> None:
        self.files[path] = data

    async def read(self, path: str, *, max_bytes: int = 1 << 20) -> bytes:
        return self.files[path]

    async def run(self, command: Any, **_: Any) -> Ran:
        assert command == ["python3", "main.py"]
        await asyncio.sleep(0)
        if isinstance(self.ran, Exception):
            raise self.ran
        return self.ran

    async def close(self) -> None:
        self.open_now -= 1


def in_sandbox(ran: Ran | Exception, *says: str) -> tuple[Box, str]:
    box = Box(ran)
    with REGISTRY.overlay({("sandbox", "box"): lambda: box}):
        episode = made("tools", Talking(*says), tools=["python"], sandbox="box", timeout_s=3.0, image="img")
    return box, whole(episode.trajectories[0])


def test_a_program_runs_in_a_sandbox_of_the_episode() -> None:
    """Opened at the first call and closed at the end, with the limits of the options."""
    box, text = in_sandbox(Ran(ending=Ending.EXITED, exit_code=0, stdout="1\n", stderr=""), CODE, CODE, "1")

    assert text.count("<tool_response>\n1\n</tool_response>") == 2
    assert (box.files, box.num_opened, box.open_now) == ({"main.py": b"print(1)"}, 1, 0)
    assert (box.limits.timeout_s, box.limits.memory_mb, box.image) == (3.0, 512, "img")
    assert in_sandbox(box.ran, "no call")[0].num_opened == 0


@pytest.mark.parametrize(
    ("ending", "code", "told"),
    [
        (Ending.EXITED, 1, "exit code 1\nout\nTraceback"),
        (Ending.TIMEOUT, None, "stopped after 3 s\nout\nTraceback"),
        (Ending.MEMORY, None, "stopped: more than 512 MiB of memory\nout\nTraceback"),
        (Ending.KILLED, None, "killed\nout\nTraceback"),
    ],
)
def test_how_a_program_ended_is_told(ending: Ending, code: int | None, told: str) -> None:
    """With what it printed before."""
    ran = Ran(ending=ending, exit_code=code, stdout="out\n", stderr="Traceback\n")

    assert f"<tool_response>\nError: {told}\n</tool_response>" in in_sandbox(ran, CODE, "x")[1]


def test_a_sandbox_that_fails_fails_the_episode() -> None:
    """It is nothing the policy did."""
    box = Box(SandboxError("no sandbox"))
    with REGISTRY.overlay({("sandbox", "box"): lambda: box}), pytest.raises(SandboxError, match="no sandbox"):
        made("tools", Talking(CODE), tools=["python"], sandbox="box")
    assert box.open_now == 0


def test_programs_of_one_answer_run_in_turn() -> None:
    """In the one sandbox they have; the second finds the files of the first."""
    running, most = [], []

    class Counting(Box):
        async def run(self, command: Any, **_: Any) -> Ran:
            running.append(1)
            most.append(len(running))
            await asyncio.sleep(0)
            running.pop()
            return await super().run(command)

    async def both() -> None:
        programs = Programs(Counting(Ran(ending=Ending.EXITED, exit_code=0, stdout="", stderr="")), Limits())
        await asyncio.gather(programs.python("1"), programs.python("2"))
        await programs.close()

    asyncio.run(both())
    assert most == [1, 1]


_NUMBERS = st.integers(0, 999) | st.floats(0.25, 99, width=16)
_EXPRESSIONS = st.recursive(
    _NUMBERS.map(str),
    lambda inner: (
        st.tuples(inner, st.sampled_from(["+", "-", "*", "/", "//", "%"]), inner).map(
            lambda parts: f"({parts[0]} {parts[1]} {parts[2]})"
        )
        | inner.map(lambda text: f"-{text}")
    ),
    max_leaves=8,
)


@given(_EXPRESSIONS)
def test_the_calculator_computes_what_python_does(expression: str) -> None:
    """Whole numbers exactly; what Python refuses it refuses in words."""
    try:
        wanted = eval(expression, {"__builtins__": {}})
    except ArithmeticError:
        with pytest.raises(ToolError):
            calculator(expression)
        return
    found = ast.literal_eval(calculator(expression))

    assert found == wanted or math.isclose(found, wanted)


@given(st.text("0123456789+-*/%()._ abcxe", max_size=30) | st.text(max_size=20))
@example("__import__('os')")
@example("9**9**9")
@example("(-1)**0.5")
@example("1e308*10")
@example("2**-1")
@example("0**-1")
@example("(" * 500)
@example("9" * 900)
@example("True + 1")
@example("'a' * 3")
@example("1_000")
def test_the_calculator_never_fails_otherwise(expression: str) -> None:
    """Any text is a number or an error in words."""
    try:
        calculator(expression)
    except ToolError as error:
        assert str(error)


def test_the_offline_task_shows_the_calculator_as_it_is() -> None:
    """The model is warm-started on the schema that the workflow shows it."""
    session = Talking("x")
    made("tools", session)
    messages = [{"role": "user", "content": "ab>"}]
    text = TOKENIZER.apply_chat_template(messages, tools=[CALCULATOR], tokenize=False, add_generation_prompt=True)

    assert TOKENIZER.decode(list(session.asked[0])) == text
