"""A reward of 1 for a completion made of tagged parts, such as `<think>...</think><answer>...</answer>`.

Knows: tags, their order, and what stands between them.
Does not know: what a part says.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from attrs import field, frozen, validators

from areal_tasks.datasets.rows import Row
from areal_tasks.rewards.finished import is_finished

_NAME = r"[A-Za-z_][\w.-]*"


def _differ(_config: object, _attribute: object, value: Sequence[str]) -> None:
    if len(set(value)) != len(value):
        raise ValueError(f"'tags' must differ, each part stands once: {list(value)}")


@frozen(kw_only=True)
class FormatConfig:
    """Options of `format`."""

    tags: tuple[str, ...] = field(
        default=("think", "answer"),
        validator=[validators.min_len(1), _differ, validators.deep_iterable(validators.matches_re(_NAME))],
    )
    """Names of the parts. Each is opened and closed once, and none stands in another."""
    ordered: bool = True
    """The parts stand in the order of `tags`."""
    outside: bool = False
    """Let text stand before, between and after the parts; white space always may."""
    empty: bool = False
    """Let a part hold nothing but white space."""
    opened: bool = False
    """The prompt ends with the first tag opened, as some chat templates do: the completion only closes it."""
    share: bool = False
    """Give the share of `tags` that stand once, opened and then closed, where the whole is not as it should be; half of
    that at most."""
    finished: bool = True
    """Give 0 to completions cut off by the token budget."""


class Format:
    """Looks at the tags of the completion."""

    def __init__(self, config: FormatConfig) -> None:
        """Make ready what finds the tags, once per reward process."""
        self._config = config
        self._tag = re.compile(rf"<(/?)({'|'.join(map(re.escape, config.tags))})>")

    def __call__(
        self, prompt: str, completion: str, completion_ids: Sequence[int], stop_reason: str, row: Row
    ) -> float:
        """Return 1.0, 0.0, or what `share` gives. Called in a reward process, once per completion."""
        if self._config.finished and not is_finished(stop_reason):
            return 0.0
        text = f"<{self._config.tags[0]}>{completion}" if self._config.opened else completion
        found = list(self._tag.finditer(text))
        marks = [match[1] + match[2] for match in found]
        if self._is_whole(marks) and self._is_filled(text, found):
            return 1.0
        if not self._config.share:
            return 0.0
        tags = self._config.tags
        once = [tag for tag in tags if [mark for mark in marks if mark.strip("/") == tag] == [tag, f"/{tag}"]]
        return 0.5 * len(once) / len(tags)

    def _is_whole(self, marks: Sequence[str]) -> bool:
        """Tell whether each tag is opened and at once closed, in the order that is wanted."""
        wanted, opened = list(self._config.tags), marks[::2]
        in_order = opened == wanted if self._config.ordered else sorted(opened) == sorted(wanted)
        return in_order and marks[1::2] == [f"/{name}" for name in opened]

    def _is_filled(self, text: str, found: Sequence[re.Match[str]]) -> bool:
        """Tell whether the parts of a whole completion hold text, and the rest of it none, as far as that is wanted."""
        between = [text[: found[0].start()], *(text[a.end() : b.start()] for a, b in pairwise(found))]
        between.append(text[found[-1].end() :])
        outside, inside = between[::2], between[1::2]
        return (self._config.outside or not "".join(outside).strip()) and (
            self._config.empty or all(part.strip() for part in inside)
        )
