"""Prompts that leave no room: counted when a run opens its data, told, and left out; the others keep their places."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest
from attrs import define, field

from areal_core.contract.data import Episode
from areal_core.contract.errors import DatasetError
from areal_core.contract.workflow import Session, Tokenizer
from areal_tasks import fitting as module
from areal_tasks.datasets.rows import LazyRows, Row
from areal_tasks.fitting import TOKENS_PER_BYTE, fitting

EPISODE = cast(Episode, "an episode")
TOKENIZER = cast(Tokenizer, None)


@define
class Words:
    """A workflow whose prompts have a token per word, and two around them. Also a view, and whoever takes events."""

    asked: list[str] = field(factory=list)
    notes: list[str] = field(factory=list)
    waited_for: list[str] = field(factory=list)
    events: list[tuple[str, Mapping[str, Any]]] = field(factory=list)

    async def arun_episode(self, engine: Session, data: Mapping[str, Any]) -> Episode:
        return EPISODE

    def prompt_ids(self, tokenizer: Tokenizer, data: Row, task_id: str) -> Sequence[int]:
        self.asked.append(data["prompt"])
        return [0, *map(len, data["prompt"].split()), 0]

    def step(self, record: Mapping[str, Any]) -> None: ...

    def note(self, text: str) -> None:
        self.notes.append(text)

    def waiting(self, what: str) -> None:
        self.waited_for.append(what)

    def tell(self, kind: str, **fields: Any) -> None:
        self.events.append((kind, fields))

    def fit(self, longest: int, rows: Sequence[Row], key: str = "data") -> Sequence[Row]:
        """Return the rows the run goes on with."""
        return asyncio.run(fitting(self, TOKENIZER, longest, self.tell, self, key, rows))


def words(*counts: int) -> list[Row]:
    """Rows of prompts of so many words."""
    return [{"prompt": " ".join("a" * 20 for _ in range(count))} for count in counts]


def test_a_prompt_needs_room_for_one_token_beside_it() -> None:
    """Of a sequence of ten tokens it may have nine, those of the template counted; the others keep their order."""
    rows = words(3, 7, 8, 2, 99, 1)

    kept = Words().fit(10, rows)

    assert list(kept) == [rows[0], rows[1], rows[3], rows[5]]
    assert [kept[-1], *kept[1:3]] == [rows[5], rows[1], rows[3]]


class Writing(Words):
    """Writes conversations with the renderer `lines`."""

    def writes(self, tokenizer: Tokenizer) -> str:
        return "lines (auto)"


def test_the_renderer_of_a_run_is_told_once() -> None:
    """As an event, when the rows to train on are opened."""
    run = Writing()
    run.fit(10, words(3))
    run.fit(10, words(3), "evaluation.data")

    assert run.events == [("renderer", {"name": "lines (auto)"})]


def test_how_many_are_left_out_is_told_with_what_to_try() -> None:
    """In the terminal and as a warning, which the page of the run shows; data sets are told apart."""
    run = Words()
    run.fit(10, words(3, 9, 99))
    run.fit(10, words(9, 1), "evaluation.data")
    (kind, train), (_, held) = run.events

    assert (kind, train["name"], train["value"], train["threshold"]) == ("warning", "prompts_too_long", 2, 10)
    assert train["says"].startswith("2 of 3 prompts of data are too long and left out")
    assert held["says"].startswith("1 of 2 prompts of evaluation.data are")
    assert "rollout.context_length" in train["advice"]
    assert run.notes[0] == f"warning: {train['says']}; try: {train['advice']}"


@pytest.mark.parametrize("rows", [words(3, 4), ()], ids=["all fit", "no data set"])
def test_where_all_fit_the_run_goes_on_with_its_own_rows(rows: Sequence[Row]) -> None:
    """Nothing is told."""
    run = Words()

    assert run.fit(10, rows) is rows
    assert (run.events, run.notes) == ([], [])


def test_nothing_but_prompts_that_are_too_long_is_an_error() -> None:
    """Before anything starts."""
    with pytest.raises(DatasetError, match=r"all 2 prompts of data (.|\n)*at most 10 tokens(.|\n)*fix"):
        Words().fit(10, words(9, 10))


def test_a_prompt_of_few_bytes_is_not_tokenized() -> None:
    """Normalization makes at most eleven bytes of one; what a template puts around a prompt counts too."""
    short, long = "a" * 10, "a" * 11
    run = Words()
    run.fit(2 + 10 * TOKENS_PER_BYTE + 1, [{"prompt": short}, {"prompt": long}, {"prompt": "é" * 10}])

    assert run.asked == ["", long, "é" * 10]


def test_a_very_large_data_set_is_not_read_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """So a generated one of a million rows keeps no run from starting: what is too long then fails as an episode."""
    monkeypatch.setattr(module, "MAX_MEASURED", 100)
    run, rows = Words(), words(*[9] * 101)

    assert run.fit(10, rows) is rows
    assert run.asked == []


def test_what_cannot_be_measured_is_left_to_its_episode() -> None:
    """Images are as long as the engine says; a row that is wrong, or cannot be read, is told where it is used."""

    class Strict(Words):
        def prompt_ids(self, tokenizer: Tokenizer, data: Row, task_id: str) -> Sequence[int]:
            raise DatasetError("the row has no column 'prompt'")

    def unreadable(number: int) -> Row:
        raise OSError("a torn image")

    wrong, torn = words(99), LazyRows(3, unreadable)
    images = [{"prompt": "a " * 50, "images": ["one.png"]}]

    assert Strict().fit(10, wrong) is wrong
    assert Words().fit(10, torn) is torn
    assert Words().fit(10, images) is images


def _without(name: str) -> type:
    async def arun_episode(self: object, engine: Session, data: Mapping[str, Any]) -> Episode:
        return EPISODE

    return {
        "no notion of a prompt": type("Own", (), {"arun_episode": arun_episode}),
        "another way to its prompts": type("Turns", (Words,), {"arun_episode": arun_episode}),
    }[name]


@pytest.mark.parametrize("name", ["no notion of a prompt", "another way to its prompts"])
def test_a_workflow_with_prompts_of_its_own_is_left_alone(name: str) -> None:
    """Agents of many turns, or one that shortens what it asks: only it knows what fits."""
    run, rows = Words(), words(99)

    assert asyncio.run(fitting(_without(name)(), TOKENIZER, 10, run.tell, run, "data", rows)) is rows


def test_measuring_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """At least every two seconds."""
    clock = iter(range(10_000))
    monkeypatch.setattr(module.time, "monotonic", lambda: next(clock))
    run = Words()
    run.fit(10, words(*[3] * 50))

    assert run.waited_for[0] == "the prompts of data to be measured: 2 of 50"
    assert len(run.waited_for) > 20
