"""Ranks draw random numbers from the seed of the specification: of their own where their shards are their own.

Knows: what each rank draws after a start.
Does not know: what it is drawn for.
"""

from __future__ import annotations

import itertools

from areal_conformance.benches.train import TrainBench
from areal_conformance.check import Level, check
from areal_conformance.outcome import expect
from areal_conformance.ranks.layouts import answered, named

SEEDS = [1, 1, 40]


@check(
    "train.ranks.draws",
    level=Level.DISTRIBUTED,
    law=3,
    spec="train#training-engines-and-objectives",
    requires=("parallel.data",),
    ranks=2,
)
def draws(bench: TrainBench) -> None:
    """Ranks of different shards draw apart, of one shard alike; so does one seed each time, and another otherwise."""
    for layout, answers in answered(bench, "areal_conformance.ranks.draws:draws", seeds=SEEDS):
        where = f"layout {named(layout)}"
        for rank, answer in enumerate(answers):
            first, again, other = answer["drawn"]
            expect(first == again, f"{where}: rank {rank}, started twice with one seed, draws {first} and {again}")
            common = {*first} & {*other}
            expect(not common, f"{where}: rank {rank} draws {sorted(common)} with seed {SEEDS[0]} and with {SEEDS[-1]}")
        for (one, left), (two, right) in itertools.combinations(enumerate(answers), 2):
            told = f"ranks {one} and {two} have shards {left['shard']} and {right['shard']}"
            if left["shard"] != right["shard"]:
                common = {*left["drawn"][0]} & {*right["drawn"][0]}
                expect(not common, f"{where}: {told}, and both draw {sorted(common)}: their noise is the same")
            else:
                drawn = [answer["drawn"][0] for answer in (left, right)]
                expect(drawn[0] == drawn[1], f"{where}: {told}, and draw {drawn[0]} and {drawn[1]} for the same tokens")
