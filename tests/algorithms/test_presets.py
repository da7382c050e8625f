"""Presets: what each sets counts unless something else is said, and a run records what resulted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from areal_algorithms.presets import check_roles, preset, presets
from areal_core.algorithms.config import AlgorithmConfig, BehaviourWeight, KLEstimator, NormConfig, NormLevel, Proximal
from areal_core.algorithms.plan import objective_spec
from areal_core.config.load import dump_config, load_config
from areal_core.contract.errors import ConfigError, PlanError
from areal_core.plugins.registry import default_registry
from areal_core.plugins.structure import structure

NAMES = [each.name for each in presets()]
ASKED_FOR = [
    *("grpo", "ppo", "dapo", "dr_grpo", "rloo", "reinforce++", "reinforce++_baseline"),
    *("lite_ppo", "gspo", "sapo", "m2po", "cispo"),
]


def _algorithm(name: str) -> AlgorithmConfig:
    return load_config(base={"algorithm": {"preset": name}}).algorithm


def test_these_are_there() -> None:
    """By the names people know."""
    assert sorted(ASKED_FOR) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_is_whole(name: str) -> None:
    """Every key of it is known, its pieces are installed and take their options, and it says where it is from."""
    one, algorithm = preset(name), _algorithm(name)
    spec, estimator = objective_spec(algorithm, 16), algorithm.advantages.estimator

    default_registry().build("objective", spec.name, spec.config)
    default_registry().build("estimator", estimator.name, estimator.options)
    assert one.keys["algorithm"] and "preset" not in one.keys["algorithm"]
    assert one.summary and one.paper and one.arxiv and one.formula
    assert algorithm != AlgorithmConfig(preset=name)


def test_presets_differ() -> None:
    """No two names stand for the same settings."""
    settings = [repr(objective_spec(_algorithm(name))) + repr(_algorithm(name).advantages) for name in NAMES]

    assert len(set(settings)) == len(NAMES)


def test_presets_are_what_their_papers_say() -> None:
    """The settings that make each what it is."""
    found = {name: _algorithm(name) for name in NAMES}
    options: dict[str, Any] = {name: algorithm.objective.options for name, algorithm in found.items()}
    estimators = {name: algorithm.advantages.estimator for name, algorithm in found.items()}

    assert (options["dapo"]["clip_low"], options["dapo"]["clip_high"], options["dapo"]["normalizer"]) == (
        *(0.2, 0.28),
        "tokens",
    )
    assert found["dapo"].advantages.overlong.over(20480) == 4096
    assert (options["dr_grpo"]["normalizer"], estimators["dr_grpo"].options["std"]) == ("constant", "none")
    assert (options["grpo"]["normalizer"], estimators["grpo"].options["std"]) == ("sequences", "group")
    assert (options["lite_ppo"]["normalizer"], estimators["lite_ppo"].options["std"]) == ("tokens", "batch")
    assert (options["gspo"]["ratio_level"], options["gspo"]["normalizer"]) == ("sequence", "sequences")
    assert (options["cispo"]["surrogate"], options["cispo"]["clip_low"]) == ("cispo", 1.0)
    assert (options["sapo"]["tau_positive"], options["sapo"]["tau_negative"]) == (1.0, 1.05)
    assert (found["m2po"].proximal, found["m2po"].behaviour.mode) == (Proximal.RECOMPUTE, BehaviourWeight.SECOND_MOMENT)
    assert found["reinforce++_baseline"].kl_loss.estimator is KLEstimator.K2
    assert found["reinforce++"].advantages.kl.estimator is KLEstimator.K1
    assert estimators["rloo"].name == "leave_one_out"
    assert found["ppo"].advantages.reward_norm == NormConfig()
    assert found["ppo"].advantages.advantage_norm == NormConfig(mean=NormLevel.BATCH, std=NormLevel.BATCH)


def test_what_is_said_beside_or_after_a_preset_counts(tmp_path: Path) -> None:
    """A file's own keys beat the preset it names, an override beats both; the rest of the preset stays."""
    (tmp_path / "run.yaml").write_text(
        "algorithm: {preset: dapo, objective: {options: {clip_high: 0.3}}, minibatches: 4}"
    )

    config = load_config(tmp_path / "run.yaml", ["algorithm.objective.options.clip_low=0.1"]).algorithm

    options = config.objective.options
    assert (options["clip_low"], options["clip_high"], options["normalizer"]) == (0.1, 0.3, "tokens")
    assert (config.minibatches, config.advantages.overlong.share) == (4, 0.2)


def test_a_preset_named_by_an_override_beats_the_file(tmp_path: Path) -> None:
    """The file was written for another one: of that nothing is left but what the file itself says."""
    (tmp_path / "run.yaml").write_text(
        "algorithm: {preset: dapo, objective: {options: {clip_low: 0.05}}, minibatches: 4}"
    )

    config = load_config(tmp_path / "run.yaml", ["algorithm.preset=dr_grpo"]).algorithm
    none = load_config(tmp_path / "run.yaml", ["algorithm.preset=''"]).algorithm

    assert (config.preset, config.objective.options["clip_low"], config.minibatches) == ("dr_grpo", 0.2, 4)
    assert config.advantages.overlong.share == 0.0
    assert (none.preset, none.objective.options, none.minibatches) == ("", {"clip_low": 0.05}, 4)


@pytest.mark.parametrize("name", NAMES)
def test_a_run_records_what_resulted(name: str, tmp_path: Path) -> None:
    """`config.yaml` has every key, and reads back equal."""
    config = load_config(base={"algorithm": {"preset": name, "minibatches": 2}})
    (tmp_path / "config.yaml").write_text(dump_config(config))

    again = load_config(tmp_path / "config.yaml")

    assert again == config
    assert "estimator:" in (tmp_path / "config.yaml").read_text()


def test_a_preset_that_is_none_is_refused_by_name() -> None:
    """The nearest is suggested."""
    with pytest.raises(ConfigError, match=r"algorithm\.preset 'grpoo' is unknown") as caught:
        load_config(None, ["algorithm.preset=grpoo"])

    assert caught.value.fix == "did you mean 'grpo'?"


@pytest.mark.parametrize(("name", "role"), [("ppo", "critic"), ("reinforce++", "reference")])
def test_a_preset_without_a_role_it_needs_is_refused(name: str, role: str) -> None:
    """Before anything loads, and the section is named."""
    with pytest.raises(PlanError, match=f"there is no {role}") as caught:
        check_roles(name, frozenset({"actor"}))

    check_roles(name, frozenset({"actor", role}))
    assert f"`{role}: " in str(caught.value.fix)


def test_the_penalty_on_long_answers_is_of_tokens_or_of_a_share() -> None:
    """A share follows the budget of new tokens."""
    by_share = structure(AlgorithmConfig, {"advantages": {"overlong": {"share": 0.25}}}).advantages.overlong

    assert (by_share.over(16), by_share.over(100)) == (4, 25)


def test_the_command_lists_and_shows() -> None:
    """Name, one line and paper; of one, its formula and the keys it sets."""

    def areal(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "areal_core.cli.main", *words], capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    listed, shown = areal("algorithms"), areal("algorithms", "ppo")

    assert all(name in listed for name in NAMES)
    assert "2503.14476" in listed
    assert r"\hat A_t" in shown and "needs: critic" in shown and "advantage_norm:" in shown
