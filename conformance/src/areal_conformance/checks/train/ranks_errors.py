"""An error on one of several ranks is an error on all, nobody hangs, and what comes next is right.

Knows: how to make a call wrong on one rank only.
Does not know: how ranks tell each other.
"""

from __future__ import annotations

from areal_conformance.benches.train import TrainBench
from areal_conformance.check import Level, check
from areal_conformance.outcome import expect
from areal_conformance.ranks.layouts import EVEN, layouts, named, raised_on_all, same_on_all, same_report

_SPOILED = "areal_conformance.ranks.steps:spoiled"
_DATA = ("parallel.data",)
_APART_S = 4.0
"""For checks a broken engine hangs in: the calls made take milliseconds."""


@check(
    "train.ranks.error.too_long",
    level=Level.DISTRIBUTED,
    law=9,
    spec="train#train_step",
    requires=_DATA,
    ranks=2,
    deadline_s=40.0,
)
def too_long(bench: TrainBench) -> None:
    """A sequence too long for one rank is a BatchError on every rank, nobody hangs, and the next step is right."""
    for layout in layouts(bench, letter="d"):
        _error_on_all(bench, layout, defect="too_long", bad=1, call="train_step")
        _error_on_all(bench, layout, defect="too_long", bad=0, call="train_step")


@check(
    "train.ranks.error.forward",
    level=Level.DISTRIBUTED,
    law=9,
    spec="train#forward",
    requires=_DATA,
    ranks=2,
    deadline_s=40.0,
)
def too_long_forward(bench: TrainBench) -> None:
    """What one rank cannot score is a BatchError on every rank, nobody hangs, and the next step is right."""
    for layout in layouts(bench, letter="d"):
        _error_on_all(bench, layout, defect="too_long", bad=1, call="forward")
        _error_on_all(bench, layout, defect="too_long", bad=0, call="forward")


@check(
    "train.ranks.error.missing_column",
    level=Level.DISTRIBUTED,
    law=9,
    spec="train#train_step",
    requires=_DATA,
    ranks=2,
    deadline_s=40.0,
)
def missing_column(bench: TrainBench) -> None:
    """A column one rank lacks is a BatchError on every rank, nobody hangs, and the next step is right."""
    for layout in layouts(bench, letter="d"):
        _error_on_all(bench, layout, defect="missing_column", bad=0, call="train_step")
        _error_on_all(bench, layout, defect="missing_column", bad=1, call="train_step")


@check(
    "train.ranks.error.unknown_token",
    level=Level.DISTRIBUTED,
    law=9,
    spec="train#train_step",
    requires=_DATA,
    ranks=2,
    deadline_s=40.0,
)
def unknown_token(bench: TrainBench) -> None:
    """A token id one rank does not know is a BatchError on every rank, nobody hangs, and the next step is right."""
    for layout in layouts(bench, letter="d"):
        for call in ("train_step", "forward"):
            _error_on_all(bench, layout, defect="unknown_token", bad=1, call=call)
            _error_on_all(bench, layout, defect="unknown_token", bad=0, call=call)


@check(
    "train.ranks.error.model",
    level=Level.DISTRIBUTED,
    law=9,
    spec="train#start",
    requires=_DATA,
    ranks=2,
    deadline_s=40.0,
)
def missing_model(bench: TrainBench) -> None:
    """A model folder one rank cannot see is a ModelError on every rank, or all start; the next start works."""
    for layout in layouts(bench):
        for bad in (1, 0):
            answers = bench.on_ranks(
                "areal_conformance.ranks.starts:missing_model", 2, apart_s=_APART_S, layout=layout, bad=bad
            )
            errors = [answer["error"] for answer in answers]
            if any(error[0] for error in errors):
                raised_on_all(layout, errors, ["ModelError"], f"start with a folder rank {bad} cannot see")
            same_on_all(layout, [answer["report"] for answer in answers], "the report after another start")


def _error_on_all(bench: TrainBench, layout: dict[str, int], *, defect: str, bad: int, call: str) -> None:
    answers = bench.on_ranks(_SPOILED, 2, apart_s=_APART_S, layout=layout, rows=EVEN, defect=defect, bad=bad, call=call)
    what = f"{call} with {defect.replace('_', ' ')} on rank {bad}"
    raised_on_all(layout, [answer["error"] for answer in answers], ["BatchError"], what)
    expect(answers[0]["unchanged"], f"layout {named(layout)}: {what} was refused, but has changed weights")
    same_on_all(layout, [answer["next"] for answer in answers], f"the report after {what}")
    same_report(bench, layout, answers[0]["alone"], answers[0]["next"], f"the step after {what}")
