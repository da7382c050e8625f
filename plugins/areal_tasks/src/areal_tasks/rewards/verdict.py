"""What a judge is asked about an answer, and how its words become a score.

Knows: the question, and where in a judge's words the score stands.
Does not know: who judges, or how it is asked.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from attrs import field, frozen, validators

from areal_core.contract.errors import ConfigError
from areal_tasks.datasets.rows import Row
from areal_tasks.rewards.finished import required

QUESTION = """\
Judge how good the answer to the request is, from 0 (useless or wrong) to 10 (right and complete).

[Request]
{prompt}

[Answer]
{completion}

Think briefly, then end with a line of the form "Score: N"."""
_NAMED = re.compile(r"\{(\w+)\}")
_GIVEN = ("prompt", "completion")


def _pattern(_config: object, _attribute: object, value: str) -> None:
    try:
        groups = re.compile(value).groups
    except re.error as error:
        raise ConfigError(f"pattern={value!r} is no regular expression", why=str(error)) from None
    if not groups:
        raise ConfigError(
            f"pattern={value!r} has no group", why="the first group is the score", fix=r"for example 'Score: *([\d.]+)'"
        )


@frozen(kw_only=True)
class VerdictConfig:
    """Options of everything that has an answer judged by a language model."""

    question: str = QUESTION
    """What is asked; {prompt}, {completion} and columns of the row, such as {answer}, are filled in."""
    pattern: str = field(default=r"(?i)score\W*?([-+]?\d+(?:\.\d+)?)", validator=_pattern)
    """A regular expression; the first group of its last match in the answer is the score."""
    scale: float = field(default=10.0, validator=validators.gt(0.0))
    """The score is divided by this."""

    def columns(self) -> Sequence[str]:
        """Return the columns that the question names."""
        return [name for name in _NAMED.findall(self.question) if name not in _GIVEN]

    def asked(self, prompt: str, completion: str, row: Row) -> str:
        """Return the question about one answer.

        Raises:
            DatasetError: the question names a column the row does not have.
        """
        known = dict(zip(_GIVEN, (prompt, completion), strict=True))

        def filled(match: re.Match[str]) -> str:
            name = match[1]
            return known[name] if name in known else str(required(row, name))

        return _NAMED.sub(filled, self.question)

    def score(self, verdict: str) -> float:
        """Return the score in what a judge said, divided by `scale`.

        Raises:
            ValueError: it holds none.
        """
        found = re.findall(self.pattern, verdict)
        if not found:
            raise ValueError(f"the judge's answer holds no score ({self.pattern}): {verdict[-300:]!r}")
        last = found[-1] if isinstance(found[-1], str) else found[-1][0]
        score = float(last) / self.scale
        if not math.isfinite(score):
            raise ValueError(f"the judge's score is {last}")
        return score
