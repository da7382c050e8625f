"""An AReaL yaml into a run of ours.

Knows: the order of the rules, and that what no rule has read is told.
Does not know: any rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import fields, frozen

from areal_config.migrate.algorithm import convert_algorithm
from areal_config.migrate.draft import Draft
from areal_config.migrate.rest import (
    convert_bound,
    convert_data,
    convert_length,
    convert_loggers,
    convert_rollout,
    convert_saving,
)
from areal_config.migrate.roles import ROLES, convert_layouts, convert_role, convert_servers
from areal_config.names.called import foreign_names
from areal_core.config.load import load_config
from areal_core.config.schema import RunConfig
from areal_core.contract.errors import ConfigError

_KINDS = {"sft": "sft", "rw": "reward_model", "dpo": "dpo"}
_OF_THE_CLUSTER = ("cluster", "scheduler", "enable_offload", "async_training")


@frozen
class Migration:
    """A run's configuration as plain data, and what its author must know. Any: plain data."""

    config: Mapping[str, Any]
    decide: tuple[str, ...]
    """Keys that need a decision, each with why."""
    lost: tuple[str, ...]
    """Keys of the old file that have no equal, each with what does their work."""


def migrate(old: Mapping[str, Any]) -> Migration:
    """Convert a configuration of AReaL, given as plain data with interpolations resolved.

    Raises:
        ConfigError: it is no such configuration, or a value has no place here.
    """
    if not {"actor", "train_dataset"} & set(old):
        raise ConfigError(
            "this is no configuration of AReaL",
            why=f"it has neither actor nor train_dataset, but {', '.join(map(str, old)) or 'nothing'}",
            fix="name the yaml of an experiment; areal config NAME tells what one of its keys is called here",
        )
    draft = Draft(old)
    kind = _kind(draft)
    steps = convert_length(draft) if kind == "rl" else _epochs(draft)
    if steps is not None and kind == "rl":  # there the schedule moves once per batch, here per optimizer step
        steps *= draft.left().get("actor.ppo_n_minibatches") or 4
    convert_layouts(draft)
    for role in ROLES:
        if role != "ref" or kind != "rl":
            convert_role(draft, role, steps)
    if kind == "rl":
        convert_algorithm(draft)
        convert_role(draft, "ref", steps)
        convert_rollout(draft)
        convert_servers(draft)
        convert_bound(draft)
    convert_data(draft, kind=kind)
    convert_saving(draft)
    convert_loggers(draft)
    _weights(draft)
    _tell_the_rest(draft)
    load_config(base=draft.new)
    order = [field.name for field in fields(RunConfig)]
    config = {key: draft.new[key] for key in sorted(draft.new, key=order.index)}
    return Migration(config, tuple(draft.decide), tuple(draft.lost))


def _kind(draft: Draft) -> str:
    """Return what kind of run it is, and set it."""
    kind = _KINDS.get(str(draft.take("train_dataset.type", "rl")), "rl")
    if draft.has("gconfig") or draft.has("rollout"):
        kind = "rl"
    beta, loss = draft.take("beta"), draft.take("loss_type", "sigmoid")
    if kind == "dpo":
        kind = "ipo" if loss == "ipo" else "dpo"
        draft.set("options.beta", float(beta) if beta is not None else None)
    if kind != "rl":
        draft.set("kind", kind)
    return kind


def _epochs(draft: Draft) -> int | None:
    """Convert the length of a run that reads rows."""
    epochs = draft.left().get("total_train_epochs") or 1
    steps = convert_length(draft)
    if steps is None:
        draft.decide.pop()
        draft.set("options.epochs", epochs)
    return steps


def _weights(draft: Draft) -> None:
    """Convert how weights travel, and what the cluster was."""
    mode = draft.take("actor.weight_update_mode")
    if mode == "disk":
        draft.set("weight_sync.transport", "disk")
    elif mode == "xccl":
        draft.set("weight_sync.transport", "collective")
    if (nodes := draft.take("cluster.n_nodes", 1)) > 1:
        draft.decide.append(f"scheduler: the old run had {nodes} machines; the scheduler `local` has one")
    if folder := draft.take("cluster.fileroot"):
        draft.lost.append(f"cluster.fileroot: {folder}: everything of a run is in `out`")
    for section in _OF_THE_CLUSTER:
        draft.drop(section)
    for role in ROLES:
        for section in ("fsdp", "archon", "megatron", "mb_spec", "_version", "experiment_name", "trial_name"):
            draft.drop(f"{role}.{section}")
        for word in ("attn_impl", "disable_dropout", "pad_to_maximum", "init_from_scratch", "is_critic", "optimizer"):
            draft.drop(f"{role}.{word}")
    for word in ("rollout.experiment_name", "rollout.trial_name", "rollout.fileroot", "tokenizer_path"):
        draft.drop(word)


def _tell_the_rest(draft: Draft) -> None:
    for key, value in draft.left().items():
        if value not in (None, False, "", [], {}):
            draft.lost.append(f"{key}: {value}" + (f": {told}" if (told := foreign_names(key)) else ""))
