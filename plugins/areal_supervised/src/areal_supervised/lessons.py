"""Pairs of answers and what they are compared by."""

from __future__ import annotations

from areal_core.contract.train import Output
from areal_supervised.config import SupervisedConfig
from areal_supervised.learning import Comparison
from areal_supervised.preference import Formula
from areal_supervised.rows import judged_pairs, pairs
from areal_supervised.run import Lesson


def by_logprobs(config: SupervisedConfig, formula: Formula) -> Lesson:
    """Compare answers by the log-probs of their tokens."""
    return Lesson(config=config, encode=pairs, method=Comparison(formula, Output.LOGPROBS))


def by_values(config: SupervisedConfig, formula: Formula) -> Lesson:
    """Compare answers by the value of what comes after them."""
    return Lesson(config=config, encode=judged_pairs, method=Comparison(formula, Output.VALUES))
