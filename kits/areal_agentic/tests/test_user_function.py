"""What a user names is found as it is written, run once, and told about where it is wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from areal_agentic.user_function import check_function, user_function, user_module
from areal_core.contract.errors import ConfigError

WHAT, FIX = "agent=mine.py:run is no agent", "write one"


@pytest.fixture
def file(tmp_path: Path) -> Callable[[str], str]:
    def write(text: str, name: str = "mine.py") -> str:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return str(path)

    return write


def test_a_file_is_run_once_whoever_names_it(file: Callable[[str], str]) -> None:
    """As FILE.py:FUNCTION and as FILE.py; another file of the same name is another module."""
    one, other = file("def run(row): return row"), file("def run(row): return 2", "there/mine.py")

    run = user_function(f"{one}:run", what=WHAT, fix=FIX, takes=["row"])
    assert run is user_module(one, what=WHAT, fix=FIX).run
    assert (run(1), user_function(f"{other}:run", what=WHAT, fix=FIX)(1)) == (1, 2)
    assert user_function("json:dumps", what=WHAT, fix=FIX)([1]) == "[1]"


def test_modules_beside_a_file_are_found(file: Callable[[str], str]) -> None:
    """As where the file is run by Python itself."""
    file("WORD = 'hello'", "beside_the_agent.py")

    assert (
        user_function(f"{file('from beside_the_agent import WORD as w; run = w.upper')}:run", what=WHAT, fix=FIX)()
        == "HELLO"
    )


def test_a_file_may_be_known_by_its_own_name(file: Callable[[str], str]) -> None:
    """Then no other file can be."""
    known = user_module(file("x = 1", "known_so.py"), what=WHAT, fix=FIX, known_as="known_so")
    import known_so  # type: ignore[import-not-found]

    assert known is known_so
    with pytest.raises(ConfigError, match="known_so is imported already"):
        user_module(file("x = 1", "other.py"), what=WHAT, fix=FIX, known_as="known_so")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("1 / 0", "mine.py:1, in <module>: 1 / 0"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("def run(:", "SyntaxError"),
        ("other = 1", "no attribute 'run'"),
        ("run = 1", "run is a int"),
        ("def run(a, b): ...", "run(a, b) is not called with row"),
    ],
)
def test_what_is_wrong_is_told_in_the_words_of_who_named_it(file: Callable[[str], str], text: str, told: str) -> None:
    """And the next try runs the file again."""
    path = file(text)
    for _ in range(2):
        with pytest.raises(ConfigError) as raised:
            user_function(f"{path}:run", what=WHAT, fix=FIX, takes=["row"])

    assert (raised.value.what, raised.value.fix) == (WHAT, FIX) and told in raised.value.why
    assert "user_function.py" not in raised.value.why, "only lines of the user's own are shown"


def test_a_function_is_looked_for_without_running_its_file(file: Callable[[str], str]) -> None:
    """Defined in a branch, or imported, it is there."""
    path = file("raise SystemExit\nfrom json import dumps\nif True:\n    def run(row): ...\n")

    check_function(f"{path}:run", what=WHAT, fix=FIX)
    check_function(f"{path}:dumps", what=WHAT, fix=FIX)
    for name in (f"{path}:other", "nowhere.py:run", "no.such.module:run"):
        with pytest.raises(ConfigError):
            check_function(name, what=WHAT, fix=FIX)
