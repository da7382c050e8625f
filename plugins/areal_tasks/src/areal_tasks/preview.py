"""What a run will read first, for `areal train --dry-run`: a row, its prompt as the model reads it, the reward's call.

Knows: how to open a run's data, tokenizer, workflow and reward without its engines.
Does not know: plans (`areal_core.config.plan`), or which parameters a reward function has (extension `reward_call`).
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from areal_core.config.model_folder import load_tokenizer
from areal_core.config.plan import Plan
from areal_core.config.schema import DataConfig
from areal_core.contract.errors import ArealError, DatasetError, PlanError
from areal_core.contract.workflow import RewardInput
from areal_core.plugins.blame import told
from areal_core.plugins.extensions import extension
from areal_core.plugins.registry import Registry
from areal_tasks.datasets.rows import Row
from areal_tasks.fitting import HasPrompt, Writes
from areal_tasks.rewards.finished import HasParts, ReadsColumns

FIRST = "the first row"
_SHOWN = 600
"""Characters of a prompt that are shown: its beginning and its end."""
_COMPLETION = "..."
_OF_PAIRS = frozenset({"prompt", "chosen", "rejected", "system", "tools", "chat_template_kwargs"})


@runtime_checkable
class Previews(Protocol):
    """A kind of run whose rows say nothing: it tells in its own words what comes first."""

    def preview(self, plan: Plan) -> str: ...


def preview(plan: Plan, registry: Registry) -> str:
    """Return what the first row becomes: the extension `preview`.

    Raises:
        DatasetError: a data set cannot be read, or its first row is none of those that the run takes.
        ModelError: the tokenizer cannot be loaded.
        PlanError: the reward function cannot be built, or needs what a completion and its row do not have.
    """
    config = plan.config
    lesson = None if config.kind == "rl" else registry.build("kind", config.kind, config.options, "options")
    if isinstance(lesson, Previews):
        return lesson.preview(plan)
    rows = _rows(config.data, registry, "data")
    lines = [f"data      {config.data.name}: {len(rows):,} rows, of {', '.join(map(str, rows[0]))}"]
    first = {"data": rows[0]}
    if config.evaluation.data is not None:
        held_out = _rows(config.evaluation.data, registry, "evaluation.data")
        first["evaluation.data"] = held_out[0]
        lines.append(f"held out  {config.evaluation.data.name}: {len(held_out):,} rows")
    tokenizer = load_tokenizer(plan.roles[-1].model.path)
    if hasattr(lesson, "lesson"):
        return "\n".join([*lines, *_learned(rows[0], tokenizer, lesson.lesson())])
    if config.kind == "rl" and {"chosen", "rejected"} <= set(rows[0]) <= _OF_PAIRS:
        raise PlanError(
            f"{FIRST} of data is a pair of answers, and kind is rl",
            why="a run of reinforcement learning generates its answers, and nothing here tells what they are worth",
            fix="set kind to dpo, ipo or reward_model; or give the reward a column to compare with, such as 'answer'",
        )
    if isinstance(lesson, ReadsColumns):
        _check_columns(f"kind {config.kind!r}", lesson.columns(), first, "options")
    prompt, told_of_prompt = _prompt(plan, rows[0], tokenizer, registry)
    lines += told_of_prompt
    if config.rollout.reward.name:
        lines += _reward(plan, first, prompt, registry)
    return "\n".join(lines)


def _rows(data: DataConfig, registry: Registry, key: str) -> Sequence[Row]:
    """Open a data set and read its first row."""
    try:
        rows = registry.build("dataset", data.name, data.options, f"{key}.options")
        assert isinstance(rows, Sequence)
        if not len(rows):
            raise DatasetError(f"the data set of {key} has no rows", fix=f"check {key}.name and {key}.options")
        if not isinstance(rows[0], Mapping):
            raise DatasetError(f"{FIRST} of {key} is a {type(rows[0]).__name__}", why="a row is a mapping")
    except ArealError:
        raise
    except Exception as error:  # whatever a user's data set raises
        raise DatasetError(
            f"data set {data.name!r} cannot be read", why=told(error), fix="correct it, or its options"
        ) from error
    return rows


def _prompt(plan: Plan, row: Row, tokenizer: Any, registry: Registry) -> tuple[str, list[str]]:
    """Return the first prompt as the model reads it, and what is told of it. Any: a Hugging Face tokenizer."""
    chosen = plan.config.rollout.workflow
    workflow = registry.build("workflow", chosen.name, chosen.options, "rollout.workflow.options")
    written = workflow.writes(tokenizer) if isinstance(workflow, Writes) else ""
    before = [f"renderer  {written}"] if written else []
    given = row.get("prompt")
    plain = given if isinstance(given, str) else _COMPLETION
    if not isinstance(workflow, HasPrompt) or row.get("images") is not None:
        why = "the row has images" if isinstance(workflow, HasPrompt) else "it makes its own requests"
        return plain, [*before, f"prompt    as workflow {chosen.name} makes it: {why}"]
    try:
        ids = workflow.prompt_ids(tokenizer, row, FIRST)
    except ArealError:
        raise
    except Exception as error:  # whatever a user's workflow raises
        raise DatasetError(f"workflow {chosen.name!r} makes no prompt of {FIRST}", why=told(error)) from error
    text = str(tokenizer.decode(ids))
    return plain if isinstance(given, str) else text, [
        *before,
        f"prompt    {len(ids):,} tokens, as the model reads {FIRST}:",
        *_indented(text),
    ]


def _learned(row: Row, tokenizer: Any, lesson: Any) -> list[str]:  # Any: transformers; a kind's own
    """Return what is told of a row to learn from: every sequence, its context and what is learned."""
    lines = []
    for ids, mask in lesson.encode(row, tokenizer, lesson.config, FIRST):
        before = tokenizer.decode([each for each, on in zip(ids, mask, strict=True) if not on])
        learned = tokenizer.decode([each for each, on in zip(ids, mask, strict=True) if on])
        lines += [f"learned   {sum(mask):,} of {len(ids):,} tokens of {FIRST}:", *_indented(learned)]
        lines += ["          after:", *_indented(before)] if before else []
    return lines


def _reward(plan: Plan, first: Mapping[str, Row], prompt: str, registry: Registry) -> list[str]:
    """Return the call of the reward function, and of its parts, for a completion of the first row of `data`."""
    reward = plan.config.rollout.reward
    try:
        function = registry.build("reward", reward.name, reward.options, "rollout.reward.options")
    except ArealError:
        raise
    except (Exception, SystemExit) as error:  # whatever a user's file raises
        raise PlanError(f"reward {reward.name!r} cannot be built", why=told(error), fix="correct it") from error
    if isinstance(function, ReadsColumns):
        _check_columns(f"reward {reward.name!r}", function.columns(), first, "rollout.reward.options")
    value = RewardInput(prompt=prompt, completion=_COMPLETION, completion_ids=(), stop_reason="stop", row=first["data"])
    if not isinstance(function, HasParts):
        return ["reward    " + _call(reward.name, function, value)]
    parts = [f"          {_call(name, each, value)}" for name, each in function.parts().items()]
    return [f"reward    {reward.name} of {len(parts)} parts:", *parts]


def _call(name: str, function: object, value: RewardInput) -> str:
    """Return the call of a reward function or of a part."""
    arguments = extension("reward_call")
    if arguments is None or not callable(function):
        return name
    try:
        named: Mapping[str, object] = arguments(function, value)
    except ArealError as error:
        raise PlanError(f"reward {name!r}: {error.what}", why=error.why, fix=error.fix) from None
    shown = reprlib.Repr()
    shown.maxstring = shown.maxother = 60
    return f"{name}({', '.join(f'{key}={shown.repr(each)}' for key, each in named.items())})"


def _check_columns(who: str, columns: Sequence[str], first: Mapping[str, Row], options: str) -> None:
    """Refuse what reads a column that a first row lacks."""
    for key, row in first.items():
        for column in columns:
            if column not in row:
                raise PlanError(
                    f"{who}: {FIRST} of {key} has no column {column!r}",
                    why=f"it is read for the reward; there are {', '.join(map(str, row))}",
                    fix=f"correct {options}, or map the column with {key}.options.columns",
                )


def _indented(text: str) -> list[str]:
    half = _SHOWN // 2
    clipped = text if len(text) <= _SHOWN else f"{text[:half]} [...] {text[-half:]}"
    return [f"          {line}" for line in clipped.splitlines() or [""]]
