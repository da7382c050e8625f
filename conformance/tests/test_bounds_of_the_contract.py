"""The contract's tables of precision state the bounds that checks hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from areal_conformance.benches.infer import COARSE as WITHOUT_FLOAT32
from areal_conformance.checks.infer import budgets as infer
from areal_conformance.checks.infer.content import COARSE
from areal_conformance.checks.train import budgets, budgets_half, precision, scale
from areal_conformance.probes.precision import GRAIN, GROWTH, MOMENTS, PER_STEP

CONTRACT = Path(__file__).parents[2] / "docs/contract"
WORDS = {4.0: "four times"}
TRAIN = {
    "columns and values of any run": (GRAIN,),
    "log-probs late in a long sequence": (GROWTH,),
    "weights, by decay alone": (PER_STEP,),
    "moments, by steps without": (MOMENTS,),
    "what decay alone leaves of an adapter's A": (budgets.DECAYED,),
    "log-probs at a temperature": (budgets_half.DIVIDED,),
    "the head's gradient of many pieces": (budgets_half.ADDED,),
    "log-probs and entropy, from float64": (precision.USUAL, precision.WORST),
    "loss of a step": (precision.LOSS,),
    "gradient norm of a step": (precision.NORM,),
    "gradient norm of 64 small": (scale.NORM, scale.GRADIENT),
    "gradient norm of two data ranks": (budgets_half.ADDED,),
    "weights after fifty steps": (precision.MOVED,),
}
INFER = {
    "log-probs and scores of any run": (GRAIN,),
    "log-probs of a long output": (infer.MEAN,),
    "log-probs late in an output": (GROWTH,),
    "ratios of tokens": (infer.RATIO,),
    "places": (infer.UNSURE,),
    "log-probs of weights served in bfloat16": (COARSE,),
    "log-probs of an engine that has no float32": (WITHOUT_FLOAT32,),
}


@pytest.mark.parametrize(
    ("page", "row", "bounds"),
    [(page, *one) for page, rows in (("train", TRAIN), ("infer", INFER)) for one in rows.items()],
)
def test_a_row_states_what_its_check_holds(page: str, row: str, bounds: tuple[float, ...]) -> None:
    """As a number, or as a percentage."""
    lines = (CONTRACT / f"{page}.md").read_text(encoding="utf-8").splitlines()
    (found,) = (line for line in lines if line.startswith(f"| {row}"))
    stated = found.split("|")[2]

    for bound in bounds:
        spellings = (f"{bound:g}", f"{bound:.0e}".replace("e-0", "e-"), f"{bound:.0%}", WORDS.get(bound, "?"))
        assert any(text in stated for text in spellings), f"{bound:g} is held, and the page says{stated}"
