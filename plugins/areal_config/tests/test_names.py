"""Names of other systems are answered by what they are called here."""

from __future__ import annotations

import pytest

from areal_config import find
from areal_config.names.called import SYSTEMS, answers, foreign_names
from areal_config.schema import plugin_options
from areal_core.config.load import load_config
from areal_core.contract.errors import UnknownKey
from areal_core.plugins.registry import Registry

KNOWN = {key.path: key for key in find.run_keys()}


def options(role: str) -> set[str]:
    """Return the options of all plugins of a role."""
    return {key.path for cls in plugin_options(Registry(), role).values() for key in find.class_keys(cls)}


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_name_leads_to_a_key_there_is(system: str) -> None:
    """A key of a run, or an option of a plugin that may stand there; without one the note says why."""
    holders = {path: options(key.role) for path, key in KNOWN.items() if key.role}
    for theirs, name in SYSTEMS[system].items():
        for ours in name.ours:
            held = [known for path, known in holders.items() if ours.startswith(f"{path}.")]
            assert ours in KNOWN or any(ours.partition("options.")[2] in known for known in held), (theirs, ours)
        assert name.ours or name.note, theirs


@pytest.mark.parametrize(
    ("word", "ours"),
    [
        ("learning_rate", "actor.optimizer.lr"),
        ("num_generations", "rollout.group_size"),
        ("per_device_train_batch_size", "rollout.prompts_per_step"),
        ("beta", "algorithm.kl_loss.coefficient"),
        ("kl_coef", "algorithm.advantages.kl.coefficient"),
        ("max_head_offpolicyness", "rollout.max_staleness"),
        ("rollout.max_head_offpolicyness", "rollout.max_staleness"),
        ("gconfig.n_samples", "rollout.group_size"),
        ("dynamic_bs", "rollout.dynamic_batch"),
        ("actor_rollout_ref.rollout.n", "rollout.group_size"),
        ("max_completion_length", "rollout.sampling.max_new_tokens"),
        ("epsilon", "algorithm.objective.options.clip_low"),
        ("epsilon_high", "algorithm.objective.options.clip_high"),
        ("loss_type", "algorithm.objective.options.normalizer"),
        ("scale_rewards", "algorithm.advantages.reward_norm.std"),
        ("actor.eps_clip", "algorithm.objective.options.clip_low"),
        ("config.actor_rollout_ref.actor.optim.lr", "actor.optimizer.lr"),
        ("training.num_generations", "rollout.group_size"),
    ],
)
def test_a_known_name_is_answered(word: str, ours: str) -> None:
    """With its path, a part of it, or more than it."""
    assert repr(ours) in foreign_names(word)


@pytest.mark.parametrize("word", ["no_such_name", "checkpoint.path", "x"])
def test_a_name_nobody_uses_is_not_answered(word: str) -> None:
    """Nor is a last word that many use, at a place nobody has it."""
    assert answers(word) == [] and foreign_names(word) == ""


def test_what_stands_below_an_unknown_section_is_answered_too() -> None:
    """Some of it, and how many more there are."""
    told = foreign_names(
        "actor_rollout_ref", {"rollout": {"n": 8, "top_p": 1}, "actor": {"clip_ratio": 0.2, "optim": {"lr": 1e-6}}}
    )

    assert "'rollout.group_size'" in told and told.endswith("; and 1 more")


@pytest.mark.parametrize(
    ("override", "ours"),
    [
        ("learning_rate=1e-5", "actor.optimizer.lr"),
        ("actor.ppo_n_minibatches=4", "algorithm.minibatches"),
        ("rollout.sampling.max_completion_length=5", "rollout.sampling.max_new_tokens"),
        ("actor_rollout_ref={rollout: {n: 8}}", "rollout.group_size"),
        ("loggers=[{name: wandb, run_name: x}]", "'name'"),
    ],
)
def test_the_error_of_a_run_says_what_a_key_is_called(override: str, ours: str) -> None:
    """At any depth."""
    with pytest.raises(UnknownKey) as told:
        load_config(None, [override])

    assert ours in str(told.value.fix)


def test_a_typo_is_still_a_typo() -> None:
    """Tables do not hide near keys."""
    with pytest.raises(UnknownKey, match=r"did you mean 'rollout\.group_size'"):
        load_config(None, ["rollout.group_siz=3"])


def test_areal_config_answers_names_too() -> None:
    """As the error of a run does."""
    assert "'rollout.group_size'" in str(find.unknown("num_generations", list(KNOWN.values())))
