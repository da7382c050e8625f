"""A reward of 1 where a regular expression is found, and, if asked for, says what the row does.

A pattern that takes for ever on some text ends with its process, after `rollout.reward.timeout_s`.

Knows: patterns, their groups and flags.
Does not know: what a completion means.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from enum import StrEnum

from attrs import Attribute, field, frozen, validators

from areal_tasks.datasets.rows import Row
from areal_tasks.rewards.finished import is_finished, required

FLAGS = {name: re.RegexFlag[name.upper()] for name in ("ignorecase", "multiline", "dotall", "verbose", "ascii")}


class Match(StrEnum):
    """Which match of a pattern counts."""

    FIRST = "first"
    """The first in the completion."""
    LAST = "last"
    """The last in the completion."""
    FULL = "full"
    """The whole completion has to match."""


def compiled(pattern: str, flags: Sequence[str] = ()) -> re.Pattern[str]:
    """Return a pattern made ready.

    Raises:
        ValueError: it is no regular expression; says at which position.
    """
    try:
        return re.compile(pattern, sum((FLAGS[flag] for flag in flags), re.NOFLAG))
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"'pattern' is no regular expression: {error}: {pattern!r}") from None


@frozen(kw_only=True)
class RegexConfig:
    r"""Options of `regex`.

    Example: RegexConfig(pattern=r"<answer>(.*?)</answer>", column="answer", flags=("dotall",))
    """

    flags: tuple[str, ...] = field(default=(), validator=validators.deep_iterable(validators.in_(list(FLAGS))))
    """Any of ignorecase, multiline, dotall, verbose and ascii, as in Python's `re`."""
    pattern: str = field()
    """A regular expression of Python."""
    match: Match = Match.FIRST
    """Which match counts: first, last, or full."""
    column: str = ""
    """A column of the row that the match, or its group, has to equal; empty asks for a match alone."""
    group: int | None = field(default=None, validator=validators.optional(validators.ge(0)))
    """What is compared with `column`: the group of this number, 0 for the whole match; null is the first group, or the
    whole match of a pattern without groups."""
    strip: bool = True
    """Leave white space around the completion, and around the two that are compared, aside."""
    finished: bool = True
    """Give 0 to completions cut off by the token budget."""

    @pattern.validator
    def _check_pattern(self, _: Attribute[str], value: str) -> None:
        groups = compiled(value, self.flags).groups
        if self.group is not None and self.group > groups:
            raise ValueError(f"'group' is {self.group}, and 'pattern' has {groups} of them: {value!r}")


class Regex:
    """Looks for a pattern in the completion."""

    def __init__(self, config: RegexConfig) -> None:
        """Make the pattern ready, once per reward process."""
        self._config, self._pattern = config, compiled(config.pattern, config.flags)
        self._group = min(self._pattern.groups, 1) if config.group is None else config.group

    def columns(self) -> Sequence[str]:
        """Return the column that is compared with."""
        return (self._config.column,) if self._config.column else ()

    def __call__(
        self, prompt: str, completion: str, completion_ids: Sequence[int], stop_reason: str, row: Row
    ) -> float:
        """Return 1.0 or 0.0. Called in a reward process, once per completion."""
        if self._config.finished and not is_finished(stop_reason):
            return 0.0
        found = self._match(self._plain(completion))
        if found is None or not self._config.column:
            return float(found is not None)
        return float(self._plain(found[self._group] or "") == self._plain(str(required(row, self._config.column))))

    def _match(self, text: str) -> re.Match[str] | None:
        if self._config.match is Match.FULL:
            return self._pattern.fullmatch(text)
        if self._config.match is Match.FIRST:
            return self._pattern.search(text)
        return next(iter(deque(self._pattern.finditer(text), maxlen=1)), None)

    def _plain(self, text: str) -> str:
        return text.strip() if self._config.strip else text
