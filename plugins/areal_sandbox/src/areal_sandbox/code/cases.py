"""One test of a program, as one command in a sandbox, and whether what it did is a pass.

    test code        `harness`: a pass is a word that is drawn for this test alone and handed over after the program
    input, output    a program that reads and prints: the expected output never enters the sandbox

A program that prints `ok`, exits with 0 in the middle of a test or ends its process has not said the word.

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


def case_of_test(test: str) -> Case:
    """Return the case of Python test code, which runs after the program and among its names."""
    word = secrets.token_hex(16)
    stdin = f"{word}\n{test}".encode(errors="replace")
    return Case(command=("python3", "-I", "-c", _HARNESS, PROGRAM), stdin=stdin, expected=word)


def case_of_pair(given: str, expected: str) -> Case:
    """Return the case of a program that reads standard input and prints."""
    return Case(command=("python3", PROGRAM), stdin=given.encode(errors="replace"), expected=expected)


def _plain(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.rstrip().splitlines())
