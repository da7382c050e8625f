"""A state that one rank cannot read: it is refused by all of them, whichever file it is and however it is spoiled.

Knows: what must be the same after a refusal.
Does not know: which rank reads which file.
"""

from __future__ import annotations

from areal_conformance.benches.train import TrainBench
from areal_conformance.check import Level, check
from areal_conformance.outcome import expect
from areal_conformance.ranks.layouts import UNEVEN, layouts, named, raised_on_all

_APART_S = 4.0


@check(
    "train.ranks.state.each_file",
    level=Level.FAULTS,
    law=9,
    spec="train#load_state",
    requires=("parallel.data", "checkpoint.exact"),
    ranks=2,
    deadline_s=60.0,
)
def each_file(bench: TrainBench) -> None:
    """Any file of a state cut, emptied, overwritten or gone is a CheckpointError on every rank; all go on as before."""
    for layout in layouts(bench):
        answers = bench.on_ranks(
            "areal_conformance.ranks.torn:load_each_torn", 2, apart_s=_APART_S, layout=layout, rows=UNEVEN
        )
        for number, first in enumerate(answers[0]):
            what = f"load_state of a state with {first['file']} {first['way']}"
            entries = [answer[number] for answer in answers]
            if number:
                raised_on_all(layout, [entry["error"] for entry in entries], ["CheckpointError"], what)
            where = f"layout {named(layout)}, after {what}"
            for rank, entry in enumerate(entries):
                whole = answers[rank][0]
                expect(entry["version"] == 4, f"{where}: rank {rank} has version {entry['version']}, it had 4")
                expect(
                    entry["drawn"] == whole["drawn"],
                    f"{where}: rank {rank} draws {entry['drawn']} next, it would have drawn {whole['drawn']}",
                )
                expect(
                    entry["step"] == whole["step"],
                    f"{where}: rank {rank}'s next step is {entry['step']}, it would have been {whole['step']}",
                )
            for key, when in (("gap", "changed by"), ("end_gap", "after the next step differs by")):
                distance, worst = first[key]
                expect(distance == 0.0, f"{where}: {worst} {when} {distance:.3g}")
