"""Mutants as rows: what a change is handed, what it may do, and what is refused before any check runs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch
from attrs import frozen

from areal_proof.mutants.rows import after, before, catches, given, gives, on, put, subclass, then, within


@frozen
class _Answer:
    """What the calls below give and take. One: _Answer(words="a", count=1)."""

    words: str
    count: int = 1


class _Backend:
    suffix = "!"

    def answer(self, question: _Answer, times: int = 1) -> _Answer:
        if not question.words:
            raise ValueError("no words")
        return _Answer(question.words + self.suffix, times)

    async def wait(self, question: _Answer) -> _Answer:
        return self.answer(question)


def _answer(change: Any, words: str = "a", times: int = 2) -> _Answer:
    broken = subclass("Broken", _Backend, {"answer": change})
    result: _Answer = broken().answer(_Answer(words), times=times)
    return result


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda original: original(), "a!"),
        (lambda original, question: original(_Answer(question.words * 2)), "aa!"),
        (gives(words="other"), "other"),
        (gives(words=lambda result, times: result.words * times), "a!a!"),
        (given(words=lambda question: question.words.upper()), "A!"),
        (after(lambda result, self: _Answer(self.suffix)), "!"),
        (within(lambda self: put(self, suffix="?")), "a?"),
        (then(lambda: None), "a!"),
    ],
)
def test_a_change_is_handed_what_it_names(change: Any, words: str) -> None:
    """Arguments come by the call's names, beside the backend, the original and the result."""
    assert words == _answer(change).words


def test_a_decorated_change_is_handed_what_its_function_names() -> None:
    """A decorator hides the arguments of a function; the change gets them all the same."""

    @torch.no_grad()
    def change(original: Any, question: _Answer) -> _Answer:
        assert not torch.is_grad_enabled()
        result: _Answer = original(_Answer(question.words * 3))
        return result

    assert _answer(change).words == "aaa!"


def test_the_original_is_called_as_it_came() -> None:
    """Without arguments, the original gets those of the call, defaults and names included."""
    assert _Answer("a!", 7) == _answer(lambda original: original(), times=7)


@pytest.mark.parametrize(
    "change", [before(lambda: KeyError("x")), then(lambda: KeyError), catches(ValueError, lambda: KeyError("x"))]
)
def test_an_error_that_is_returned_is_raised(change: Any) -> None:
    """A lambda cannot raise: an error, or a class of one, that it returns is raised for it."""
    with pytest.raises(KeyError):
        _answer(change, words="" if change.caught else "a")


def test_an_error_goes_on_after_an_effect() -> None:
    """`on` sees an error and leaves it as it is; `catches` gives a result in its place."""
    seen: list[str] = []

    with pytest.raises(ValueError, match="no words"):
        _answer(on(ValueError, lambda error: seen.append(str(error))), words="")
    assert seen == ["no words"]
    assert _Answer("none") == _answer(catches(ValueError, lambda: _Answer("none")), words="")


def test_awaited_calls_are_changed_alike() -> None:
    """One change serves calls that are awaited and calls that are not."""
    broken = subclass("Broken", _Backend, {"wait": gives(count=5)})

    assert _Answer("a!", 5) == asyncio.run(broken().wait(_Answer("a")))


@pytest.mark.parametrize("changes", [{"reply": gives(words="b")}, {"answer": gives(words=lambda reply: reply)}])
def test_a_change_of_nothing_is_refused(changes: dict[str, Any]) -> None:
    """A call or an argument that does not exist is an error at import: no mutant becomes a backend that works."""
    with pytest.raises(AttributeError, match="Broken"):
        subclass("Broken", _Backend, changes)
