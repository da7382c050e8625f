"""Few rows of settings, in which every two values of two settings meet."""

from __future__ import annotations

import itertools
import math

from areal_conformance.oracles.combinations import pairwise

SETTINGS = {"layout": ("d2", "t2", "c2", "p2"), "tied": (True, False), "heat": (1.0, 0.6, 1.7), "budget": (20, 4096)}


def test_every_pair_meets_in_few_rows() -> None:
    """Two values of two settings stand in one row at least, and there are far fewer rows than combinations."""
    rows = pairwise(SETTINGS)

    for (one, left), (other, right) in itertools.combinations(SETTINGS.items(), 2):
        met = {(row[one], row[other]) for row in rows}
        assert met == set(itertools.product(left, right)), f"{one} and {other}"
    assert len(rows) < math.prod(map(len, SETTINGS.values())) / 2


def test_the_rows_are_the_same_every_time() -> None:
    """A check makes the same rows in every run; another seed makes others."""
    assert pairwise(SETTINGS) == pairwise(SETTINGS)
    assert pairwise(SETTINGS) != pairwise(SETTINGS, seed=1)


def test_a_setting_of_one_value_is_in_every_row() -> None:
    """What cannot vary stays, and nothing is left out."""
    assert [row["kind"] for row in pairwise({"kind": ("llama",), "tied": (True, False)})] == ["llama", "llama"]
