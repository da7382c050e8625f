"""The tools that the workflow `tools` brings: `calculator`, and `python` in a sandbox.

Knows: arithmetic, and how a program runs in a sandbox.
Does not know: which sandbox, or who calls.
"""

from __future__ import annotations

import ast
import asyncio
import operator
from collections.abc import Callable, Mapping

from areal_agentic.sandbox import Ending, Limits, Ran, Sandbox, SandboxProvider
from areal_agentic.tools import ToolError

_MOST_CHARACTERS, _MOST_BITS = 1000, 4096
"""Of an expression, and of a whole number in it: more would take long and help nobody."""
_BINARY: Mapping[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def calculator(expression: str) -> str:
    """Evaluate an arithmetic expression.

    Args:
        expression: numbers, + - * / // % ** and parentheses.
    """
    if len(expression) > _MOST_CHARACTERS:
        raise ToolError(f"the expression is longer than {_MOST_CHARACTERS} characters")
    try:
        value = _value(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise ToolError(f"{expression[:80]!r} is no arithmetic expression") from error
    except ArithmeticError as error:
        raise ToolError(str(error)) from error
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        value = int(value)
    return str(value)


def _value(node: ast.expr) -> float:
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return _bounded(value)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _value(operand)
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return _bounded(_power(_value(left), _value(right)))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _bounded(_BINARY[type(op)](_value(left), _value(right)))
    raise ValueError("neither a number nor an operator")


def _power(base: float, exponent: float) -> float:
    if isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * abs(exponent) > _MOST_BITS:
        raise OverflowError("the result is too large")
    value = base**exponent
    if isinstance(value, complex):
        raise ArithmeticError("the result is no real number")
    return float(value) if isinstance(value, float) else int(value)


def _bounded(value: float) -> float:
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        raise OverflowError("the result is too large")
    return value


class Programs:
    """The tool `python` of one episode: a sandbox opened at its first call."""

    def __init__(self, provider: SandboxProvider, limits: Limits, image: str = "") -> None:
        """Open nothing yet."""
        self._provider, self._limits, self._image = provider, limits, image
        self._sandbox: Sandbox | None = None
        self._turn = asyncio.Lock()

    async def python(self, code: str) -> str:
        """Run Python code and return what it prints. Files stay for later calls, variables do not.

        Args:
            code: a whole program.
        """
        async with self._turn:
            if self._sandbox is None:
                self._sandbox = await self._provider.open(self._limits, image=self._image)
            await self._sandbox.write("main.py", code.encode(errors="replace"))
            return _told(await self._sandbox.run(["python3", "main.py"]), self._limits)

    async def close(self) -> None:
        """Close the sandbox. Idempotent."""
        if self._sandbox is not None:
            await self._sandbox.close()


def _told(ran: Ran, limits: Limits) -> str:
    said = "\n".join(part for part in (ran.stdout.rstrip("\n"), ran.stderr.rstrip("\n")) if part)
    if ran.ok:
        return said
    ends = {
        Ending.EXITED: f"exit code {ran.exit_code}",
        Ending.TIMEOUT: f"stopped after {limits.timeout_s:g} s",
        Ending.MEMORY: f"stopped: more than {limits.memory_mb} MiB of memory",
        Ending.KILLED: "killed",
    }
    raise ToolError(f"{ends[ran.ending]}\n{said}".rstrip())
