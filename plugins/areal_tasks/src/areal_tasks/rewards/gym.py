"""reasoning-gym's own score of a completion.

Knows: which of reasoning-gym's scorers an entry belongs to.
Does not know: how any of them scores.

Importing reasoning-gym takes about a second (it brings sympy and matplotlib): once per reward process,
when the function is built, so that no completion waits for it against its deadline.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import field, frozen

from areal_core.contract.errors import DatasetError
from areal_tasks.datasets.rows import Row
from areal_tasks.rewards.finished import is_finished, required

Scorer = Callable[[str, Mapping[str, Any]], float]  # Any: reasoning-gym decides what an entry holds


@frozen(kw_only=True)
class ReasoningGymConfig:
    """Options of `reasoning_gym`."""

    finished: bool = True
    """Give 0 to completions cut off by the token budget."""
    strip: bool = True
    """Remove white space around the completion."""
    exact: bool = False
    """Give 1 to a completion with the full score that equals the row's `answer`, and 0 to any other: some
    scorers give part of the score to a part of the answer, or take other spellings of it."""


@frozen
class ReasoningGym:
    """Scores the completion with the scorer named in `row["entry"]["metadata"]["source_dataset"]`."""

    config: ReasoningGymConfig = ReasoningGymConfig()
    _scorers: dict[str, Scorer] = field(factory=dict, init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        import reasoning_gym  # noqa: F401  (paid here, not in the first call)

    def columns(self) -> Sequence[str]:
        """Return the columns of a row of reasoning-gym that are read."""
        return ("entry", "answer") if self.config.exact else ("entry",)

    def __call__(
        self, prompt: str, completion: str, completion_ids: Sequence[int], stop_reason: str, row: Row
    ) -> float:
        """Return the score, from 0.0 to 1.0. Called in a reward process, once per completion.

        Raises:
            DatasetError: the row has no reasoning-gym entry, or one of an unknown data set.
        """
        if self.config.finished and not is_finished(stop_reason):
            return 0.0
        completion = completion.strip() if self.config.strip else completion
        entry = required(row, "entry")
        score = float(self._scorer(entry["metadata"]["source_dataset"])(completion, entry))
        if self.config.exact:
            return float(score >= 1.0 and completion == required(row, "answer"))
        return score

    def _scorer(self, name: str) -> Scorer:
        if name not in self._scorers:
            self._scorers[name] = _load_scorer(name)
        return self._scorers[name]


def _load_scorer(name: str) -> Scorer:
    import reasoning_gym

    try:
        scorer: Scorer = reasoning_gym.get_score_answer_fn(name)
    except ValueError as exc:
        raise DatasetError(f"reasoning-gym has no data set {name!r}", why=str(exc)) from exc
    return scorer
