"""What a user's code raised is told in few lines, with theirs and no other."""

from __future__ import annotations

import json
from pathlib import Path

from areal_core.contract.errors import ConfigError
from areal_core.plugins.blame import told
from areal_core.plugins.user_file import load_file


def test_the_users_own_lines_are_named_and_no_librarys(tmp_path: Path) -> None:
    """A failure deep in json is told by the line that called it."""
    file = tmp_path / "mine.py"
    file.write_text(
        "import json\n\ndef outer(text):\n    return inner(text)\n\ndef inner(text):\n    json.loads(text)\n"
    )

    text = told(_raised(f"{file.read_text()}\nouter('oops')", file))

    assert text.splitlines()[0] == "JSONDecodeError: Expecting value: line 1 column 1 (char 0)"
    assert [line.strip() for line in text.splitlines()[-2:]] == [
        f"{file}:4, in outer: return inner(text)",
        f"{file}:7, in inner: json.loads(text)",
    ]
    assert json.__file__ not in text


def test_deep_recursion_and_long_messages_stay_short(tmp_path: Path) -> None:
    """At most four lines of code, and the beginning of the message."""
    file = tmp_path / "mine.py"
    source = "def down(n):\n    if n == 0:\n        raise ValueError('x' * 5000)\n    down(n - 1)\ndown(50)\n"
    file.write_text(source)

    text = told(_raised(source, file))

    assert len(text.splitlines()) == 5 and len(text) < 1200
    assert text.splitlines()[-1].strip() == f"{file}:3, in down: raise ValueError('x' * 5000)"


def test_an_error_without_code_of_theirs_has_its_innermost_line(tmp_path: Path) -> None:
    """Better a line of ours than none."""
    try:
        load_file(tmp_path / "nothing.py")
    except ConfigError as exc:
        text = told(exc)

    assert text.startswith("ConfigError: ") and "test_blame.py" in text
    assert told(KeyError()) == "KeyError"


def _raised(source: str, file: Path) -> Exception:
    try:
        exec(compile(source, str(file), "exec"), {})
    except Exception as exc:
        return exc
    raise AssertionError("it did not raise")


def test_what_a_terminal_would_obey_is_shown_and_not_sent() -> None:
    """Escape sequences and torn characters in a message reach nobody's terminal."""
    assert told(ValueError("a\x1b[2J\udc80b")) == r"ValueError: a\x1b[2J\udc80b"
