"""Whether a completion's final answer is mathematically the row's answer, by the library math-verify.

Knows: how to hand both to the library, without its timers: the reward pool kills what takes too long.
Does not know: how expressions are parsed or compared.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from attrs import field, frozen, validators

from areal_tasks.datasets.rows import Row
from areal_tasks.rewards.finished import is_finished, required


@frozen(kw_only=True)
class MathVerifyConfig:
    """Options of `math_verify`."""

    column: str = "answer"
    """The column of the row that holds the answer."""
    digits: int = field(default=6, validator=validators.ge(0))
    """Decimals that must agree."""
    finished: bool = False
    """Give 0 to completions cut off by the token budget."""


@frozen
class MathVerify:
    """Compares the last expression of the completion, boxed or plain, with a column of the row."""

    config: MathVerifyConfig = MathVerifyConfig()

    def __attrs_post_init__(self) -> None:
        import math_verify  # noqa: F401  (paid here, not in the first call)

        # The library warns that its timers are off, which is on purpose: they need the main thread.
        for name in ("math_verify.parser", "math_verify.grader"):
            logging.getLogger(name).setLevel(logging.ERROR)

    def columns(self) -> Sequence[str]:
        """Return the column with the answer."""
        return (self.config.column,)

    def __call__(
        self, prompt: str, completion: str, completion_ids: Sequence[int], stop_reason: str, row: Row
    ) -> float:
        """Return 1.0 or 0.0. Called in a reward process, once per completion."""
        from math_verify import parse, verify

        if self.config.finished and not is_finished(stop_reason):
            return 0.0
        answer = str(required(row, self.config.column))
        gold = parse(f"${answer}$" if "$" not in answer and "\\boxed" not in answer else answer, parsing_timeout=None)
        found = parse(completion, parsing_timeout=None)
        return float(verify(gold, found, float_rounding=self.config.digits, timeout_seconds=None))
