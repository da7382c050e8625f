"""An exact state on several ranks: it comes back on each of them, or is refused on all.

Knows: what must be the same after a load.
Does not know: files.
"""

from __future__ import annotations

from areal_conformance.benches.train import TrainBench
from areal_conformance.check import Level, check
from areal_conformance.outcome import NotRefused, expect
from areal_conformance.ranks.layouts import EVEN, UNEVEN, close, layouts, named, raised_on_all, same_on_all, same_report

_EXACT = ("parallel.data", "checkpoint.exact")
_APART_S = 4.0
_STATE = "areal_conformance.ranks.state"


@check("train.ranks.state.exact", level=Level.DISTRIBUTED, law=4, spec="train#load_state", requires=_EXACT, ranks=2)
def exact(bench: TrainBench) -> None:
    """On the same ranks a loaded state gives the same next steps, bit for bit, in this engine and in a new one."""
    for layout in layouts(bench):
        answers = bench.on_ranks(f"{_STATE}:exact", 2, layout=layout, rows=UNEVEN)
        for rank, answer in enumerate(answers):
            where = f"layout {named(layout)}, rank {rank}"
            for key in ("version", "new_version"):
                expect(answer[key] == 5, f"{where}: after load_state version is {answer[key]}, 5 was saved")
            for key in ("same_engine", "new_engine"):
                expect(
                    answer[key] == answer["expected"],
                    f"{where}, {key.replace('_', ' ')}: the steps after load_state give {answer[key]}, "
                    f"after save_state they gave {answer['expected']}",
                )
        for key in ("loaded_gap", "same_gap", "new_gap"):
            distance, worst = answers[0][key]
            expect(
                distance == 0.0, f"layout {named(layout)}: {key}: {worst} differs by {distance:.3g}, bits were expected"
            )
        seen = answers[0]["after_save"]
        expect(
            all(seen), f"layout {named(layout)}: save_state returned on some rank before the state was there: {seen}"
        )


@check("train.ranks.state.random", level=Level.DISTRIBUTED, law=4, spec="train#load_state", requires=_EXACT, ranks=2)
def random_numbers(bench: TrainBench) -> None:
    """Every rank goes on in its own sequence of random numbers, from where it was when the state was saved."""
    for layout in layouts(bench):
        answers = bench.on_ranks(f"{_STATE}:random_numbers", 2, layout=layout, rows=EVEN)
        for rank, answer in enumerate(answers):
            for key in ("same_engine", "new_engine"):
                expect(
                    answer[key] == answer["expected"],
                    f"layout {named(layout)}, rank {rank}, {key.replace('_', ' ')}: drew {answer[key]} after "
                    f"load_state, {answer['expected']} after save_state",
                )


@check(
    "train.ranks.state.fewer",
    level=Level.DISTRIBUTED,
    law=4,
    spec="train#load_state",
    requires=(*_EXACT, "checkpoint.reshard"),
    ranks=2,
)
def fewer(bench: TrainBench) -> None:
    """One rank goes on where several stopped: the same weights, moments, schedule and version."""
    for layout in layouts(bench):
        path = str(bench.folder / f"fewer-{named(layout)}")
        expected = bench.on_ranks(f"{_STATE}:save_for_others", 2, layout=layout, rows=UNEVEN, path=path)
        actual = bench.on_ranks(f"{_STATE}:load_from_others", 1, layout={"d": 1}, rows=UNEVEN, path=path)
        _goes_on(bench, f"saved by {named(layout)}, loaded by one rank", layout, expected[0], actual)


@check(
    "train.ranks.state.more",
    level=Level.DISTRIBUTED,
    law=4,
    spec="train#load_state",
    requires=(*_EXACT, "checkpoint.reshard"),
    ranks=2,
)
def more(bench: TrainBench) -> None:
    """Several ranks go on where one stopped: the same weights, moments, schedule and version on all of them."""
    for layout in layouts(bench):
        path = str(bench.folder / f"more-{named(layout)}")
        expected = bench.on_ranks(f"{_STATE}:save_for_others", 1, layout={"d": 1}, rows=UNEVEN, path=path)
        actual = bench.on_ranks(f"{_STATE}:load_from_others", 2, layout=layout, rows=UNEVEN, path=path)
        _goes_on(bench, f"saved by one rank, loaded by {named(layout)}", layout, expected[0], actual)


@check(
    "train.ranks.state.relayout",
    level=Level.DISTRIBUTED,
    law=4,
    spec="train#load_state",
    requires=(*_EXACT, "checkpoint.reshard", "parallel.tensor"),
    ranks=2,
)
def relayout(bench: TrainBench) -> None:
    """As many ranks in another layout go on where the first stopped, with the same weights, moments and version."""
    found = layouts(bench)
    for saver, loader in zip(found, [*found[1:], found[0]], strict=True):
        path = str(bench.folder / f"{named(saver)}-to-{named(loader)}")
        expected = bench.on_ranks(f"{_STATE}:save_for_others", 2, layout=saver, rows=UNEVEN, path=path)
        actual = bench.on_ranks(f"{_STATE}:load_from_others", 2, layout=loader, rows=UNEVEN, path=path)
        _goes_on(bench, f"saved by {named(saver)}, loaded by {named(loader)}", loader, expected[0], actual)


@check(
    "train.ranks.refuse.reshard",
    level=Level.DISTRIBUTED,
    law=8,
    spec="train#load_state",
    requires=_EXACT,
    unless=("checkpoint.reshard",),
    ranks=2,
    deadline_s=40.0,
)
def refuse_reshard(bench: TrainBench) -> None:
    """A state of another number of ranks is a CheckpointError on every rank, and changes nothing."""
    for layout in layouts(bench):
        for savers, loaders in ((1, 2), (2, 1)):
            path = str(bench.folder / f"from-{savers}-{named(layout)}")
            sides = {1: {"d": 1}, 2: layout}
            bench.on_ranks(f"{_STATE}:save_for_others", savers, layout=sides[savers], rows=UNEVEN, path=path)
            answers = bench.on_ranks(
                f"{_STATE}:load_from_others", loaders, apart_s=_APART_S, layout=sides[loaders], rows=UNEVEN, path=path
            )
            if not any(answer["error"][0] for answer in answers):
                raise NotRefused("checkpoint.reshard")
            what = f"load_state of a state saved by {savers} ranks"
            raised_on_all(sides[loaders], [answer["error"] for answer in answers], ["CheckpointError"], what)
            distance, worst = answers[0]["untouched_gap"]
            expect(
                distance == 0.0, f"layout {named(layout)}: {what} was refused, but {worst} changed by {distance:.3g}"
            )


@check(
    "train.ranks.state.missing",
    level=Level.DISTRIBUTED,
    law=9,
    spec="train#load_state",
    requires=_EXACT,
    ranks=2,
    deadline_s=40.0,
)
def missing(bench: TrainBench) -> None:
    """A state one rank cannot read is a CheckpointError on every rank and changes nothing, or every rank loads it."""
    for layout in layouts(bench):
        _all_or_none(bench, layout, torn=False)


@check(
    "train.ranks.state.torn",
    level=Level.FAULTS,
    law=4,
    spec="train#load_state",
    requires=_EXACT,
    ranks=2,
    deadline_s=40.0,
)
def torn(bench: TrainBench) -> None:
    """A state one of whose files was cut short is a CheckpointError on every rank, and changes nothing."""
    for layout in layouts(bench):
        _all_or_none(bench, layout, torn=True)


def _all_or_none(bench: TrainBench, layout: dict[str, int], *, torn: bool) -> None:
    answers = bench.on_ranks(f"{_STATE}:load_nothing", 2, apart_s=_APART_S, layout=layout, rows=EVEN, torn=torn)
    what = f"load_state of a state whose {answers[0]['cut']} is cut" if torn else "load_state of what one rank lacks"
    errors = [answer["error"] for answer in answers]
    loaded = not torn and not any(error[0] for error in errors)  # the last rank may have no need of files of its own
    if not loaded:
        raised_on_all(layout, errors, ["CheckpointError"], what)
        distance, worst = answers[0]["gap"]
        expect(distance == 0.0, f"layout {named(layout)}: {what} failed, but changed {worst} by {distance:.3g}")
    for rank, answer in enumerate(answers):
        right = 3 if loaded else 4
        expect(
            answer["version"] == right,
            f"layout {named(layout)}: after {what} rank {rank} has version {answer['version']}",
        )
    same_on_all(layout, [answer["step"] for answer in answers], f"the report after {what}")


def _goes_on(
    bench: TrainBench, where: str, layout: dict[str, int], expected: dict[str, object], answers: list[dict[str, object]]
) -> None:
    for rank, answer in enumerate(answers):
        error = answer["error"]
        assert isinstance(error, list)
        expect(not error[0], f"{where}: rank {rank} raised {error[0]}: {error[2]}")
        expect(answer["version"] == 11, f"{where}: version is {answer['version']} on rank {rank}, 11 was saved")
    first = answers[0]
    saved, end, steps, reports = first["saved_gap"], first["end_gap"], expected["reports"], first["reports"]
    assert isinstance(saved, list) and isinstance(end, list) and isinstance(steps, list) and isinstance(reports, list)
    expect(saved[0] == 0.0, f"{where}: {saved[1]} is not the one saved, it differs by {saved[0]:.3g}")
    for number, step in enumerate(steps):
        same_report(bench, layout, step, reports[number], f"{where}: step {number} after it")
    bound = bench.tolerance(atol=5e-5)
    close(0.0, end[0], bound.atol, 0.0, f"{where}: the largest difference in weights after two steps, of {end[1]}")
