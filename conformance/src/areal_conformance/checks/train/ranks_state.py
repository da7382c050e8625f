"""An exact state on several ranks: it comes back on each of them, or is refused on all; in the background too.

Knows: what must be the same after a load, and after a refusal.
Does not know: files, and which rank reads or writes which.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from areal_conformance.benches.train import TrainBench
from areal_conformance.check import Level, Row, check, family
from areal_conformance.oracles.train_experts import KIND
from areal_conformance.outcome import Inconclusive, NotRefused, expect
from areal_conformance.ranks.layouts import (
    APART_S,
    EVEN,
    UNEVEN,
    answered,
    close,
    layouts,
    named,
    no_gap,
    of_experts,
    raised_on_all,
    same_on_all,
    same_report,
)

_DATA = "parallel.data"
_EXACT = (_DATA, "checkpoint.exact")
_RESHARD = (*_EXACT, "checkpoint.reshard")
_STATE = "areal_conformance.ranks.state"
_MIXTURE = {"kind": KIND}
_check = partial(check, level=Level.DISTRIBUTED, law=4, spec="train#load_state", requires=_EXACT, ranks=2)
_background = partial(
    _check,
    spec="train#states-in-the-background",
    requires=("checkpoint.background", "checkpoint.exact", _DATA),
    since=(1, 2),
)


@_check("train.ranks.state.exact")
def exact(bench: TrainBench) -> None:
    """On the same ranks a loaded state gives the same next steps, bit for bit, in this engine and in a new one."""
    for layout in layouts(bench):
        same_after_load(bench, layout)
    for layout in of_experts(bench):
        same_after_load(bench, layout, model=_MIXTURE)


@_check("train.ranks.state.random")
def random_numbers(bench: TrainBench) -> None:
    """Every rank goes on in its own sequence of random numbers, from where it was when the state was saved."""
    for layout, answers in answered(bench, f"{_STATE}:random_numbers", rows=EVEN):
        for rank, answer in enumerate(answers):
            _as_after_save(f"layout {named(layout)}, rank {rank}", answer)


@family(
    "train.ranks.state.{others}",
    {
        "fewer": Row("One rank goes on where several stopped: the same weights, moments, schedule and version."),
        "more": Row(
            "Several ranks go on where one stopped: the same weights, moments, schedule and version on all of them."
        ),
        "relayout": Row(
            "As many ranks in another layout go on where the first stopped, "
            "with the same weights, moments and version.",
            requires=(*_RESHARD, "parallel.tensor"),
        ),
    },
    **{**_check.keywords, "requires": _RESHARD},
)
def others(bench: TrainBench, case: str) -> None:
    """Other ranks go on where the first stopped."""
    dense = layouts(bench)
    for found, first, model in ((dense, dense[0], {}), (of_experts(bench), dense[0], _MIXTURE)):
        following = {"fewer": [{"d": 1} for _ in found], "more": found, "relayout": [*found, first][1:]}[case]
        for saver, loader in zip([{"d": 1} for _ in found] if case == "more" else found, following, strict=True):
            path = str(bench.folder / f"{case}-{named(saver)}-to-{named(loader)}")
            expected = _on(bench, "save_for_others", saver, path, model=model)
            actual = _on(bench, "load_from_others", loader, path, model=model)
            _goes_on(bench, f"saved by {named(saver)}, loaded by {named(loader)}", loader, expected[0], actual)


@_check("train.ranks.refuse.reshard", law=8, unless=("checkpoint.reshard",), deadline_s=40.0)
def refuse_reshard(bench: TrainBench) -> None:
    """A state of another number of ranks is a CheckpointError on every rank, and changes nothing."""
    for layout in layouts(bench):
        for saver, loader in (({"d": 1}, layout), (layout, {"d": 1})):
            path = str(bench.folder / f"from-{named(saver)}-to-{named(loader)}")
            _on(bench, "save_for_others", saver, path)
            answers = _on(bench, "load_from_others", loader, path, apart_s=APART_S)
            if not any(answer["error"][0] for answer in answers):
                raise NotRefused("checkpoint.reshard")
            what = f"load_state of a state saved by {named(saver)}"
            raised_on_all(loader, answers, ["CheckpointError"], what)
            no_gap(answers[0]["untouched_gap"], f"layout {named(layout)}: {what} was refused, but weights changed")


@family(
    "train.ranks.state.{what}",
    {
        "missing": Row(
            "A state one rank cannot read is a CheckpointError on every rank and changes nothing, "
            "or every rank loads it.",
            law=9,
        ),
        "torn": Row(
            "A state one of whose files was cut short is a CheckpointError on every rank, and changes nothing.",
            level=Level.FAULTS,
        ),
    },
    deadline_s=40.0,
    **_check.keywords,
)
def all_or_none(bench: TrainBench, case: str) -> None:
    """All ranks load a state, or none does."""
    torn = case == "torn"
    for layout, answers in answered(bench, f"{_STATE}:load_nothing", apart_s=APART_S, rows=EVEN, torn=torn):
        cut = answers[0]["cut"]
        what = f"load_state of a state whose {cut} is cut" if torn else "load_state of what one rank lacks"
        # the last rank may have no need of files of its own
        loaded = not torn and not any(answer["error"][0] for answer in answers)
        if not loaded:
            raised_on_all(layout, answers, ["CheckpointError"], what)
            no_gap(answers[0]["gap"], f"layout {named(layout)}: {what} failed, but changed weights")
        versions = [answer["version"] for answer in answers]
        right = 3 if loaded else 4
        expect(versions == [right] * 2, f"layout {named(layout)}: after {what} ranks have versions {versions}")
        same_on_all(layout, [answer["step"] for answer in answers], f"the report after {what}")


@_check("train.ranks.state.each_file", level=Level.FAULTS, law=9)
def each_file(bench: TrainBench) -> None:
    """Any file of a state cut, emptied, overwritten or gone is a CheckpointError on every rank; all go on as before."""
    for layout, answers in answered(bench, f"{_STATE}:load_each_torn", apart_s=APART_S, rows=UNEVEN):
        for number, first in enumerate(answers[0]):
            what = f"load_state of a state with {first['file']} {first['way']}"
            entries = [answer[number] for answer in answers]
            if number:
                raised_on_all(layout, entries, ["CheckpointError"], what)
            where = f"layout {named(layout)}, after {what}"
            for rank, entry in enumerate(entries):
                whole = answers[rank][0]
                for key, wanted in (("version", 4), ("drawn", whole["drawn"]), ("step", whole["step"])):
                    told = f"{where}: rank {rank}'s next {key} is {entry[key]}, it would have been {wanted}"
                    expect(entry[key] == wanted, told)
            no_gap(first["gap"], where)
            no_gap(first["end_gap"], f"{where} and the next step")


@_background("train.background.ranks")
def background(bench: TrainBench) -> None:
    """Every rank's part is that of `begin_state`, and none sees the state before all have written."""
    for layout, answers in answered(bench, f"{_STATE}:background", rows=UNEVEN):
        for rank, answer in enumerate(answers):
            where = f"layout {named(layout)}, rank {rank}"
            expect(not any(answer["early"]), f"{where}: the state is at its path before finish_state")
            expect(all(answer["late"]), f"{where}: finish_state returned before the state was at its path")
            expect(answer["version"] == 5, f"{where}: version {answer['version']} was loaded, 5 was begun")
            got, wanted = answer["step"], answer["expected"]
            expect(got == wanted, f"{where}: the step after the load is {got}, after begin_state it was {wanted}")
        for key in ("loaded_gap", "end_gap"):
            no_gap(answers[0][key], f"layout {named(layout)}: {key}")


@_background("train.background.ranks_full", level=Level.FAULTS, law=9)
def background_full(bench: TrainBench) -> None:
    """A disk full for one rank is a StorageError on every rank by `finish_state`; the state before still loads."""
    fired = 0
    for victim in (1, 0):
        program = f"{_STATE}:background_full"
        for layout, answers in answered(bench, program, apart_s=APART_S, rows=UNEVEN, victim=victim):
            where = f"layout {named(layout)}, a disk full for rank {victim}"
            if any(answer["error"][0] for answer in answers):
                fired += 1
                raised_on_all(layout, answers, ["StorageError"], f"a state with a disk full for rank {victim}")
                versions = [answer["version"] for answer in answers]
                expect(versions == [7, 7], f"{where}: the ranks then load versions {versions}")
                no_gap(answers[0]["gap"], f"{where}: the state before")
            for rank, answer in enumerate(answers):
                expect(answer.get("written", True), f"{where}: on rank {rank} state_written never became True")
            same_on_all(layout, [answer["step"] for answer in answers], f"the report after a full disk, {where}")
            expect(not answers[0]["left"], f"{where}: left behind: {answers[0]['left']}")
    if not fired:
        raise Inconclusive("no rank wrote a file large enough")


def _on(
    bench: TrainBench, program: str, layout: dict[str, int], path: str, apart_s: float = 15.0, **arguments: Any
) -> list[Any]:
    """Run a program on the ranks of a layout: one, or two. Any: plain json."""
    size = 1 if layout == {"d": 1} else 2
    arguments |= {"layout": layout, "rows": UNEVEN, "path": path}
    return bench.on_ranks(f"{_STATE}:{program}", size, apart_s=apart_s, **arguments)


def same_after_load(
    bench: TrainBench, layout: dict[str, int], *, size: int = 2, rows: list[list[int]] = UNEVEN, **arguments: Any
) -> None:
    """Expect the steps after a load to be those after the save. Any: arguments of the program."""
    answers = bench.on_ranks(f"{_STATE}:exact", size, layout=layout, rows=rows, **arguments)
    for rank, answer in enumerate(answers):
        where = f"layout {named(layout)}, rank {rank}"
        for key in ("version", "new_version"):
            expect(answer[key] == 5, f"{where}: after load_state version is {answer[key]}, 5 was saved")
        _as_after_save(where, answer)
    for key in ("loaded_gap", "same_gap", "new_gap"):
        no_gap(answers[0][key], f"layout {named(layout)}: {key}")
    seen = answers[0]["after_save"]
    what = f"layout {named(layout)}: save_state returned on some rank before the state was there: {seen}"
    expect(all(seen), what)


def _as_after_save(where: str, answer: dict[str, Any]) -> None:  # Any: plain json
    for key in ("same_engine", "new_engine"):
        told = f"{key.replace('_', ' ')} gives {answer[key]} after load_state, {answer['expected']} after save_state"
        expect(answer[key] == answer["expected"], f"{where}: the {told}")


def _goes_on(
    bench: TrainBench, where: str, layout: dict[str, int], expected: dict[str, Any], answers: list[dict[str, Any]]
) -> None:
    for rank, answer in enumerate(answers):
        kind, _, text = answer["error"]
        expect(not kind, f"{where}: rank {rank} raised {kind}: {text}")
        expect(answer["version"] == 11, f"{where}: version is {answer['version']} on rank {rank}, 11 was saved")
    first = answers[0]
    no_gap(first["saved_gap"], f"{where}: what was loaded is not what was saved")
    for number, step in enumerate(expected["reports"]):
        same_report(bench, layout, step, first["reports"][number], f"{where}: step {number} after it")
    far, worst = first["end_gap"]
    close(0.0, far, bench.tolerance(atol=5e-5).atol, 0.0, f"{where}: how far {worst} is off after two steps")
