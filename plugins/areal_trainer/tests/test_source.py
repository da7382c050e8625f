"""A function of a script travels as its source with what it reads; what cannot is refused by name."""

from __future__ import annotations

import runpy
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from areal_core.contract.errors import ConfigError
from areal_trainer.source import Source, _literal

SCRIPT = """
    import json as notes
    import re
    from collections import Counter
    from os.path import basename as last
    from pathlib import PurePosixPath

    NUMBER = re.compile(r"-?[0-9]+", re.I)
    WEIGHTS = {"right": 1.0, "none": -0.5, "never": float("inf")}
    WORDS = ("sun", ["moon"], {"tree"}, b"leaf", None, True)
    handle = iter(())
    counter = 0

    def digits(text):
        return NUMBER.findall(text)

    def twice(function):
        return function

    def reward(completion, answer, weight=WEIGHTS["right"]):
        '''Score one.'''
        found = digits(completion)
        return weight if found[-1:] == [answer] else WEIGHTS["none"]

    def imported(completion):
        return Counter(notes.loads(completion))["a"] + len(last("a/bc")) + PurePosixPath("x") .name.count("x")

    def recursive(completion, depth=2):
        return 1.0 if depth == 0 else recursive(completion, depth - 1)

    def annotated(completion: "NoSuchType", row: handle = None) -> handle:
        return len([handle for handle in completion])

    @twice
    def decorated(completion):
        return float(completion == WORDS[0])

    def reads_an_iterator(completion):
        return len(list(handle))

    def counts(completion):
        global counter
        counter += 1
        return counter

    API_KEY, COLUMN_KEY = "correct horse battery", "answer"

    def reads_a_secret(completion):
        return float(API_KEY in completion)

    def holds_a_secret(completion):
        return float("sk-abcdefghij0123456789abcd" in completion)

    def reads_a_column(completion):
        return float(COLUMN_KEY in completion)

    async def waits(completion):
        return 0.0

    def outer(secret):
        def inner(completion):
            return secret
        def with_default(completion, value=secret):
            return value
        def alone(completion):
            return float(len(completion))
        return inner, with_default, alone

    inner, with_default, alone = outer(3)
    short, long = (lambda completion: 1.0), (lambda completion: len(completion) + sum(map(len, digits(completion))))
    kept = {"reward": lambda completion, answer: float(
        completion == answer
    )}["reward"]

    class Judge:
        def __call__(self, completion):
            return 1.0

    judge = Judge()

    def judged(completion):
        return judge(completion)
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the names of a script that ran as the main program."""
    path = tmp_path_factory.mktemp("script") / "train.py"
    path.write_text(textwrap.dedent(SCRIPT))
    return runpy.run_path(str(path), run_name="__main__")


def again(function: Any, **given: Any) -> Any:
    """Return what the copy of a function returns, made from its text alone."""
    source = Source(function, "the reward function")
    names: dict[str, Any] = {"__name__": "copy"}
    exec(source.text, names)
    assert names[source.name] is not function
    return names[source.name](**given)


@pytest.mark.parametrize(
    ("name", "given", "value"),
    [
        ("reward", {"completion": "so 3 and 4", "answer": "4"}, 1.0),
        ("reward", {"completion": "none", "answer": "4"}, -0.5),
        ("imported", {"completion": '["a", "a"]'}, 5),
        ("recursive", {"completion": ""}, 1.0),
        ("reads_a_column", {"completion": "the answer"}, 1.0),
        ("annotated", {"completion": "abc"}, 3),
        ("decorated", {"completion": "sun"}, 1.0),
        ("alone", {"completion": "abc"}, 3.0),
        ("short", {"completion": "12"}, 1.0),
        ("long", {"completion": "12"}, 4),
        ("kept", {"completion": "a", "answer": "a"}, 1.0),
    ],
)
def test_a_copy_does_what_the_function_does(
    script: dict[str, Any], name: str, given: dict[str, Any], value: float
) -> None:
    """With helpers, constants, imports, decorators and defaults; of two lambdas in a line the right one."""
    assert script[name](**given) == value
    assert again(script[name], **given) == value


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("inner", "reads the variable 'secret' of the function it was made in"),
        ("with_default", "reads 'secret' where 'with_default' is defined"),
        ("reads_an_iterator", "reads the global variable 'handle', which does not travel"),
        ("counts", "writes the global variable 'counter'"),
        ("reads_a_secret", "reads a secret: the global variable 'API_KEY' holds what looks like one"),
        ("holds_a_secret", "reads a secret: the source of 'holds_a_secret' holds what looks like one"),
        ("waits", "is a coroutine"),
        ("judge", "is a Judge, and no function"),
        ("judged", "reads the global variable 'judge', which does not travel"),
    ],
)
def test_what_does_not_travel_is_refused_by_name(script: dict[str, Any], name: str, says: str) -> None:
    """With what to do about it, and never as a copy that does something else."""
    with pytest.raises(ConfigError, match=says) as caught:
        Source(script[name], "the reward function")

    assert caught.value.why and caught.value.fix


def test_a_function_of_a_module_is_imported_from_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the folder it was found in; nothing of it is copied."""
    (tmp_path / "scoring_of_mine.py").write_text("import areal_core\ndef length(completion): return len(completion)\n")
    monkeypatch.syspath_prepend(tmp_path)
    import scoring_of_mine  # type: ignore[import-not-found]

    text = Source(scoring_of_mine.length, "the reward function").text

    assert "from scoring_of_mine import length" in text and str(tmp_path) in text
    monkeypatch.undo()
    del sys.modules["scoring_of_mine"]
    before = list(sys.path)
    names: dict[str, Any] = {}
    exec(text, names)
    assert names["length"]("abc") == 3
    sys.path[:] = before
    del sys.modules["scoring_of_mine"]


def test_a_function_without_source_is_refused() -> None:
    """What was typed at a prompt is nowhere to be read."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec("def reward(completion): return 1.0\nshort = lambda completion: 1.0", names)

    for name in ("reward", "short"):
        with pytest.raises(ConfigError, match=r"source of .* is not there"):
            Source(names[name], "the reward function")


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
)


@given(plain)
def test_a_plain_value_is_written_as_it_is(value: object) -> None:
    """What its text is evaluated to equals it, type for type."""
    text = _literal(value)

    assert text is not None
    assert repr(eval(text)) == repr(value)
