"""Prompts that leave no room for an answer: counted when a run opens its data, told, and left out.

What is left out depends on the rows, the tokenizer, the workflow and the longest sequence alone, so a resume with the
same has the same rows in the same places.

Knows: how to ask a workflow for a prompt's tokens, and which prompts need not be tokenized to be known to fit.
Does not know: data sets, templates, or a workflow without `prompt_ids`, which is left alone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from areal_core.contract.errors import DatasetError
from areal_core.contract.workflow import RolloutWorkflow, Tokenizer
from areal_core.observe.events import WARNING
from areal_core.plugins.extensions import RunView
from areal_tasks.datasets.rows import LazyRows, Row

MAX_MEASURED = 100_000
"""Rows of a data set that is measured; to read or generate more would keep the run from starting."""
TOKENS_PER_BYTE = 12
"""More than any prompt has: a token is a byte or more of the text after Unicode normalization, which makes at most
eleven bytes of one."""
PAUSE_S, TOLD_S = 0.1, 2.0
_OTHERWISE = {"messages", "input_ids", "tools", "chat_template_kwargs"}
"""Columns of rows whose prompt is more than the text of `prompt` in what the template puts around any."""
_METHODS = ("prompt_ids", "arun_episode")
_ADVICE = "shorten them, or raise rollout.context_length or max_tokens_per_microbatch if one of these is the bound"


@runtime_checkable
class HasPrompt(Protocol):
    """A workflow that can tell the tokens of its first request, such as `single_turn`."""

    def prompt_ids(self, tokenizer: Tokenizer, data: Row, task_id: str) -> Sequence[int]:
        """Return the token ids of a row's prompt; raises whatever a row that has none is worth."""


@runtime_checkable
class Writes(Protocol):
    """A workflow that writes conversations as tokens."""

    def writes(self, tokenizer: Tokenizer) -> str:
        """Return the name of the renderer that does it; raises DatasetError if it does not hold for this tokenizer."""


async def fitting(
    workflow: RolloutWorkflow,
    tokenizer: Tokenizer,
    longest: int,
    tell: Callable[..., None],
    view: RunView,
    key: str,
    rows: Sequence[Row],
) -> Sequence[Row]:
    """Return the rows whose prompt leaves room for one token, in their order: the extension `fitting`.

    Args:
        workflow: what the rows go to.
        tokenizer: the run's.
        longest: how many tokens a sequence may have.
        tell: takes an event `warning` if some are left out.
        view: hears that too, and how far measuring is.
        key: what the data set stands under in the configuration.
        rows: the data set; one of more than MAX_MEASURED is not measured.

    Raises:
        DatasetError: all prompts are too long.
    """
    if key == "data" and isinstance(workflow, Writes) and (name := workflow.writes(tokenizer)):
        tell("renderer", name=name)
    if not isinstance(workflow, HasPrompt) or not _asks_with_it(type(workflow)) or len(rows) > MAX_MEASURED:
        return rows
    prompts, kept = _Prompts(workflow, tokenizer, longest), list[int]()
    paused = told = time.monotonic()
    for number in range(len(rows)):
        if prompts.fits(rows, number):
            kept.append(number)
        if (now := time.monotonic()) - told >= TOLD_S:
            view.waiting(f"the prompts of {key} to be measured: {number + 1:,} of {len(rows):,}")
            told = now
        if now - paused >= PAUSE_S:
            await asyncio.sleep(0)  # Ctrl-C is heard
            paused = time.monotonic()
    found = len(rows) - len(kept)
    if not found:
        return rows
    bound = f"a sequence has at most {longest:,} tokens"
    if not kept:
        raise DatasetError(
            f"all {found:,} prompts of {key} are too long", why=f"none leaves room for one token: {bound}", fix=_ADVICE
        )
    says = f"{found:,} of {len(rows):,} prompts of {key} are too long and left out: {bound}"
    tell(WARNING, name="prompts_too_long", value=found, threshold=longest, says=says, advice=_ADVICE, over=False)
    view.note(f"warning: {says}; try: {_ADVICE}")
    return LazyRows(len(kept), lambda number: rows[kept[number]])


class _Prompts:
    """Measures the prompts of one data set."""

    def __init__(self, workflow: HasPrompt, tokenizer: Tokenizer, longest: int) -> None:
        self._workflow, self._tokenizer, self._longest = workflow, tokenizer, longest
        self._around = self._tokens({"prompt": ""})  # what a template puts around a prompt

    def fits(self, rows: Sequence[Row], number: int) -> bool:
        """Tell whether a row's prompt leaves room.

        So does one that cannot be measured: a row that cannot be read or has no prompt is told when it is its turn,
        and how many tokens an image takes is the engine's to say.
        """
        try:
            row = rows[number]
        except Exception:  # whatever a data set raises
            return True
        if row.get("images") is not None or self._surely_fits(row):
            return True
        found = self._tokens(row)
        return found is None or found < self._longest

    def _surely_fits(self, row: Row) -> bool:
        prompt = row.get("prompt")
        if self._around is None or not isinstance(prompt, str) or _OTHERWISE & set(row):
            return False
        num_bytes = len(prompt[: self._longest].encode(errors="replace"))  # enough: a character is a byte or more
        return self._around + TOKENS_PER_BYTE * num_bytes < self._longest

    def _tokens(self, row: Row) -> int | None:
        """Return how many tokens a row's prompt has, None if it cannot be told: its episode will say why."""
        try:
            return len(self._workflow.prompt_ids(self._tokenizer, row, "a row that is measured"))
        except Exception:  # whatever templates and tokenizers raise for what a row holds
            return None


def _asks_with_it(kind: type) -> bool:
    """Tell whether `prompt_ids` is of the class that makes episodes, or of one made from it: not left over below it."""
    defines = {name: next(n for n, each in enumerate(kind.__mro__) if name in vars(each)) for name in _METHODS}
    return defines["prompt_ids"] <= defines["arun_episode"]
