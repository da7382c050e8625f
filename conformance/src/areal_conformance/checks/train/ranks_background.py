"""A state written in the background by several ranks: complete on all of them, or refused on all.

Knows: what every rank must see.
Does not know: which rank writes what.
"""

from __future__ import annotations

from areal_conformance.benches.train import TrainBench
from areal_conformance.check import Level, check
from areal_conformance.outcome import Inconclusive, expect
from areal_conformance.ranks.layouts import UNEVEN, layouts, named, raised_on_all, same_on_all

SPEC = "train#states-in-the-background"
_REQUIRES = ("checkpoint.background", "checkpoint.exact", "parallel.data")
_PROGRAMS = "areal_conformance.ranks.background"
_APART_S = 4.0


@check("train.background.ranks", level=Level.DISTRIBUTED, law=4, spec=SPEC, requires=_REQUIRES, since=(1, 2), ranks=2)
def ranks(bench: TrainBench) -> None:
    """Every rank's part is that of `begin_state`, and none sees the state before all have written."""
    for layout in layouts(bench):
        answers = bench.on_ranks(f"{_PROGRAMS}:exact", 2, layout=layout, rows=UNEVEN)
        for rank, answer in enumerate(answers):
            where = f"layout {named(layout)}, rank {rank}"
            expect(not any(answer["early"]), f"{where}: the state is at its path before finish_state")
            expect(all(answer["late"]), f"{where}: finish_state returned before the state was at its path")
            expect(answer["version"] == 5, f"{where}: version {answer['version']} was loaded, 5 was begun")
            expect(
                answer["step"] == answer["expected"],
                f"{where}: the step after the load is {answer['step']}, after begin_state it was {answer['expected']}",
            )
        for key, when in (("loaded_gap", "loaded"), ("end_gap", "a step later")):
            distance, worst = answers[0][key]
            expect(distance == 0.0, f"layout {named(layout)}: {worst} {when} differs by {distance:.3g}")


@check("train.background.ranks_full", level=Level.FAULTS, law=9, spec=SPEC, requires=_REQUIRES, since=(1, 2), ranks=2)
def ranks_full(bench: TrainBench) -> None:
    """A disk full for one rank is a StorageError on every rank by `finish_state`; the state before still loads."""
    fired = 0
    for layout in layouts(bench):
        for victim in (1, 0):
            answers = bench.on_ranks(
                f"{_PROGRAMS}:disk_full", 2, apart_s=_APART_S, layout=layout, rows=UNEVEN, victim=victim
            )
            where = f"layout {named(layout)}, a disk full for rank {victim}"
            errors = [answer["error"] for answer in answers]
            failed = any(error[0] for error in errors)
            fired += failed
            if failed:
                raised_on_all(layout, errors, ["StorageError"], f"a state with a disk full for rank {victim}")
                for rank, answer in enumerate(answers):
                    expect(answer["version"] == 7, f"{where}: rank {rank} then loads version {answer['version']}")
                distance, worst = answers[0]["gap"]
                expect(distance == 0.0, f"{where}: {worst} of the state before differs by {distance:.3g}")
            same_on_all(layout, [answer["step"] for answer in answers], f"the report after a full disk, {where}")
            expect(not answers[0]["left"], f"{where}: left behind: {answers[0]['left']}")
    if not fired:
        raise Inconclusive("no rank wrote a file large enough")
