"""What the workers are sent, and which settings are refused before any model loads."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import msgspec
import pytest

from areal_algorithms.checks import check
from areal_algorithms.manifest import PPO, SFT, VALUE
from areal_algorithms.objectives.ppo import PPOConfig
from areal_core.algorithms.config import AlgorithmConfig
from areal_core.algorithms.plan import critic_spec, objective_spec
from areal_core.contract.errors import ConfigError, PlanError
from areal_core.plugins.structure import structure, unstructure


def _config(**algorithm: Any) -> AlgorithmConfig:
    return structure(AlgorithmConfig, algorithm)


def _check(config: AlgorithmConfig, **roles: Any) -> list[str]:
    return check(config, **{"has_reference": False, "has_critic": False, **roles})


def test_a_spec_survives_the_wire_and_builds_the_same_objective() -> None:
    """It is plain data: msgpack there and back structures into the configuration meant."""
    config = _config(
        objective={"options": {"clip_high": 0.28, "ratio_level": "sequence"}},
        proximal="recompute",
        behaviour={"mode": "mask", "level": "sequence", "upper": 3.0},
    )

    spec = objective_spec(config)
    built = structure(PPOConfig, msgspec.msgpack.decode(msgspec.msgpack.encode(spec.config)))

    assert spec.name == "ppo"
    assert (0.28, config.proximal, config.behaviour) == (built.clip_high, built.proximal, built.behaviour)


def test_defaults_build_the_default_objective() -> None:
    """What is left out means the same in both places."""
    assert PPOConfig() == structure(PPOConfig, objective_spec(_config()).config)
    assert critic_spec(_config()).name == "value"


def test_an_objective_of_the_users_own_gets_only_what_was_set() -> None:
    """Unknown names are carried with their options; defaults it never heard of are not forced on it."""
    config = _config(objective={"name": "mine", "options": {"alpha": 1}})

    assert objective_spec(config).config == {"alpha": 1}
    assert _check(config) == []


@pytest.mark.parametrize(
    ("algorithm", "words"),
    [
        ({"advantages": {"kl": {"coefficient": 0.1}}}, "no reference model"),
        ({"behaviour": {"mode": "mask"}}, "proximal behaviour"),
        ({"proximal": "recompute", "behaviour": {"mode": "mask", "lower": 2.0, "upper": 2.0}}, "not below upper"),
        ({"proximal": "recompute", "behaviour": {"mode": "clamp", "upper": 0.9}}, "leave out 1"),
        ({"objective": {"options": {"proximal": "recompute"}}}, "options.proximal"),
        ({"advantages": {"estimator": {"options": {"gamma": 0.9}}}}, "estimator.options.gamma"),
        ({"proximal": "loglinear", "behaviour": {"mode": "second_moment"}}, "proximal loglinear"),
        ({"proximal": "recompute", "behaviour": {"mode": "clamp", "metric": "k3"}}, "clamp with metric k3"),
        ({"proximal": "recompute", "behaviour": {"mode": "mask", "metric": "k3", "lower": 0.1}}, "leave out 0"),
        ({"proximal": "recompute", "behaviour": {"mode": "mask", "lower": -1.0}}, "is below 0"),
        (
            {"proximal": "recompute", "behaviour": {"mode": "clamp", "level": "sequence", "aggregate": "max"}},
            "clamp with aggregate max",
        ),
        ({"proximal": "recompute", "behaviour": {"mode": "mask", "aggregate": "sum"}}, "sum at level token"),
        ({"kl_loss": {"coefficient": 0.1}}, "kl_loss.coefficient is 0.1 and there is no reference"),
        ({"advantages": {"reward_norm": {"mean": "none", "leave_one_out": True}}}, "leave_one_out without a mean"),
        ({"advantages": {"overlong": {"tokens": 9}}}, "overlong.tokens 9"),
        ({"objective": {"name": "sft"}}, "objective.name is sft"),
        ({"objective": {"name": "value"}}, "objective.name is value"),
        ({"objective": {"name": "linear"}}, "objective.name is linear"),
    ],
)
def test_settings_that_cannot_go_together_are_refused(algorithm: dict[str, Any], words: str) -> None:
    """Each is named with its value, why, and what to change (V0 is the first)."""
    with pytest.raises(PlanError, match=words) as caught:
        _check(_config(**algorithm), max_new_tokens=8)

    assert caught.value.why
    assert caught.value.fix


def test_a_kl_whose_gradient_is_noise_is_refused() -> None:
    """k1 in the loss."""
    with pytest.raises(PlanError, match="estimator is k1"):
        _check(_config(kl_loss={"coefficient": 0.1, "estimator": "k1"}), has_reference=True)


@pytest.mark.parametrize("name", ["group_mean", "leave_one_out", "reinforce++", "reinforce++_baseline"])
def test_a_critic_that_nobody_asks_is_refused(name: str) -> None:
    """It would be trained for nothing."""
    with pytest.raises(PlanError, match=f"critic: with algorithm.advantages.estimator {name.replace('+', '.')}"):
        _check(_config(advantages={"estimator": {"name": name}}), has_critic=True)


@pytest.mark.parametrize(
    ("algorithm", "max_staleness", "warned"),
    [
        ({"proximal": "loglinear"}, 8, True),
        ({"proximal": "recompute"}, 8, True),
        ({"proximal": "loglinear"}, 1, False),
        ({"proximal": "loglinear", "minibatches": 4}, 8, False),
        ({"proximal": "loglinear", "epochs": 2}, 8, False),
        ({"proximal": "loglinear", "behaviour": {"mode": "clamp"}}, 8, False),
        ({"proximal": "behaviour"}, 8, False),
    ],
)
def test_a_drift_that_nothing_bounds_is_warned_of(algorithm: dict[str, Any], max_staleness: int, warned: bool) -> None:
    """The clip's centre follows the policy, and no weight looks back at who sampled, many versions ago."""
    warnings = _check(_config(**algorithm), max_staleness=max_staleness)

    assert [warned] * bool(warnings) == ["nothing bounds how far" in warning for warning in warnings]
    assert warned <= len(warnings)


def test_a_loss_over_a_constant_is_over_the_budget_of_new_tokens() -> None:
    """If nothing else is said; a number in the options stays."""
    by_budget = _config(objective={"options": {"normalizer": "constant"}})
    by_hand = _config(objective={"options": {"normalizer": "constant", "constant_tokens": 5}})

    assert objective_spec(by_budget, 64).config["constant_tokens"] == 64
    assert objective_spec(by_hand, 64).config["constant_tokens"] == 5


@pytest.mark.parametrize(
    ("algorithm", "roles", "words"),
    [
        ({}, {"has_reference": True}, "reference"),
        ({"proximal": "recompute"}, {}, "ratio is exactly 1"),
        ({"proximal": "recompute", "behaviour": {"mode": "clamp"}}, {}, "never clipped"),
        ({"advantages": {"lam": 0.9}}, {}, "without a critic"),
        ({}, {"has_critic": True}, "critic"),
        (
            {"advantages": {"estimator": {"name": "group_mean"}, "reward_norm": {"mean": "group"}}},
            {},
            "normalised twice",
        ),
        ({"advantages": {"reward_norm": {"eps": 1e-3}}}, {}, "reward_norm does nothing"),
        ({"advantages": {"advantage_norm": {"unbiased": False}}}, {}, "advantage_norm does nothing"),
    ],
)
def test_settings_that_look_unintended_warn(algorithm: dict[str, Any], roles: dict[str, bool], words: str) -> None:
    """They can run, so they do not stop the run."""
    warnings = _check(_config(**algorithm), **roles)

    assert len(warnings) == 1
    assert words in warnings[0]


def test_a_reference_with_a_coefficient_is_fine() -> None:
    """No error, no warning."""
    assert _check(_config(advantages={"kl": {"coefficient": 0.1}}), has_reference=True) == []


def test_the_default_is_fine() -> None:
    """A run that sets nothing gets no warning."""
    assert _check(_config()) == []


@pytest.mark.parametrize(
    "options", [{"clip_low": 0.0}, {"clip_high": -0.2}, {"dual_clip": 0.5}, {"clip_lo": 0.1}, {"normalizer": "token"}]
)
def test_a_wrong_option_is_a_configuration_error(options: dict[str, Any]) -> None:
    """Ranges and names are checked by the objective's own config class."""
    with pytest.raises(ConfigError):
        structure(PPOConfig, options)


def test_a_config_round_trips_as_plain_data() -> None:
    """unstructure and structure are inverse on the whole of `algorithm:`."""
    config = _config(proximal="loglinear", minibatches=4, behaviour={"mode": "clamp", "upper": 2.0})

    assert config == structure(AlgorithmConfig, unstructure(config))


def test_manifests_and_plan_import_without_torch() -> None:
    """Describing objectives and checking a run cost no torch import."""
    code = (
        "import sys, areal_algorithms.manifest, areal_algorithms.checks, areal_core.algorithms.plan; "
        "sys.exit(any(name.split('.')[0] in {'torch', 'tensordict', 'transformers'} for name in sys.modules))"
    )

    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)

    assert result.returncode == 0, result.stderr


def test_manifests_name_classes_that_exist() -> None:
    """Every built-in objective can be made from its default configuration."""
    import importlib

    for manifest in (PPO, VALUE, SFT):
        module, _, factory = manifest.factory.partition(":")
        config = str(manifest.config).partition(":")[2]
        loaded = importlib.import_module(module)
        assert getattr(loaded, factory)(getattr(loaded, config)()).outputs


def test_options_of_the_critics_objective_need_no_name() -> None:
    """They are the value objective's, as the default is."""
    assert critic_spec(_config(critic_objective={"options": {"clip": 0.5}})).name == "value"
