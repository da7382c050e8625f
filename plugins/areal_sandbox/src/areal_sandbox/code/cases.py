"""One test of a program, as one command in a sandbox, and whether what it did is a pass.

    test code        `harness`: a pass is a word that is drawn for this test alone, and never reaches the program
    input, output    a program that reads and prints: the expected output never enters the sandbox

Knows: what is handed to the program, and what is expected back.
Does not know: rows, rewards, or how a sandbox runs anything.
"""

from __future__ import annotations

import secrets
from pathlib import Path

from attrs import frozen

from areal_agentic.sandbox import Ran

PROGRAM = "program.py"
ENVIRONMENT = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONIOENCODING": "utf-8"}
_HARNESS = Path(__file__).with_name("harness.py").read_text()


@frozen(kw_only=True)
class Case:
    """One command, and what standard output has to be.

    Example: Case(command=("python3", "program.py"), stdin=b"1 2", expected="3")
    """

    command: tuple[str, ...]
    stdin: bytes
    expected: str

    def passed(self, ran: Ran) -> bool:
        """Whether it exited with 0 and printed what is expected, white space at the ends of lines aside."""
        return ran.ok and not ran.truncated and _plain(ran.stdout) == _plain(self.expected)

    def broken(self, ran: Ran) -> str:
        """Return why the test itself cannot run, whatever the program is; empty if it can."""
        return ran.stdout.partition(f"{self.expected} broken ")[2] if ran.ok else ""


def case_of_test(test: str, module: str, *, apart: bool) -> Case:
    """Return the case of Python test code; `module` is the program's name, `apart` gives it a process of its own."""
    word = secrets.token_hex(16)
    stdin = f"{word}\n{test}".encode(errors="replace")
    command = ("python3", "-I", "-B", "-c", _HARNESS, PROGRAM, module, "apart" if apart else "together")
    return Case(command=command, stdin=stdin, expected=word)


def case_of_pair(given: str, expected: str) -> Case:
    """Return the case of a program that reads standard input and prints."""
    return Case(command=("python3", PROGRAM), stdin=given.encode(errors="replace"), expected=expected)


def _plain(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.rstrip().splitlines())
