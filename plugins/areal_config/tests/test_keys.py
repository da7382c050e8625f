"""Every key of a run is told with its meaning and its default, from one source."""

from __future__ import annotations

from enum import StrEnum

import pytest
from attrs import evolve, frozen

from areal_config import find
from areal_config.keys import Key
from areal_config.limits import in_words
from areal_config.meanings import about, first_sentence, meanings
from areal_config.schema import plugin_options
from areal_config.show import override_example, yaml_example
from areal_core.config.load import load_config
from areal_core.config.lora import plan_lora
from areal_core.config.role_plan import check_optimizer
from areal_core.config.schema import RoleConfig, RunConfig
from areal_core.contract.errors import BackendNotFound, PlanError
from areal_core.contract.train import LoraSpec
from areal_core.contract.version import ROLES
from areal_core.plugins.registry import Registry
from areal_core.plugins.structure import unstructure

KNOWN = find.run_keys()
BY_PATH = {key.path: key for key in KNOWN}


def test_every_key_of_a_run_has_a_meaning() -> None:
    """In the string below the field, or above the class of a section; a new key without one is found here."""
    assert [key.path for key in KNOWN if not key.meaning] == []


@pytest.mark.parametrize("role", ROLES)
def test_every_option_of_a_plugin_has_a_meaning(role: str) -> None:
    """Of everything this project has."""
    missing = [
        f"{name}: {key.path}"
        for name, cls in plugin_options(Registry(), role).items()
        for key in find.class_keys(cls)
        if not key.meaning
    ]

    assert missing == []


def test_the_defaults_are_those_of_a_run() -> None:
    """Also where a section is given others than its class has: rewards are normalised over groups."""
    plain = unstructure(RunConfig())
    for key in KNOWN:
        value: object = plain
        for word in key.path.split("."):
            value = value.get(word, key.default) if isinstance(value, dict) else key.default
        if not key.path.startswith(("guard", "profile")):
            assert value == key.default, key.path
    assert BY_PATH["algorithm.advantages.reward_norm.mean"].default == "group"
    assert BY_PATH["algorithm.advantages.advantage_norm.mean"].default == "none"
    assert BY_PATH["critic"].default is None and BY_PATH["critic.optimizer.lr"].default == 1e-6


@pytest.mark.parametrize("key", [key for key in KNOWN if not key.section], ids=lambda key: key.path)
def test_the_example_of_a_key_is_accepted(key: Key) -> None:
    """As an override; what a key needs beside it is told when it is missing."""
    override = override_example(key).strip("'")
    beside = []
    if key.path == "loggers[].options":
        override = override.replace("{options", "{name: prometheus, options")
    if "lora." in key.path:
        section = key.path.rpartition(".")[0]
        beside = [f"{section}={{rank: 1, alpha: 1.0, targets: []}}"]
    if "together_with." in key.path:
        beside = [f"{key.path.rpartition('.')[0]}.role=actor"]

    load_config(None, [*beside, override])


def test_a_key_is_shown_where_it_stands() -> None:
    """Also in a list."""
    assert yaml_example(BY_PATH["loggers[].name"]) == "loggers:\n  - name: NAME"
    assert yaml_example(BY_PATH["rollout.group_size"]) == "rollout:\n  group_size: 8"


def test_choices_say_what_each_means() -> None:
    """From the strings below the members."""
    choices = dict(BY_PATH["rollout.staleness_policy"].choices)

    assert set(choices) == {"wait", "drop"} and choices["drop"].startswith("Drop it, count it")
    assert [value for value, _ in BY_PATH["weight_sync.pause"].choices] == ["auto", "none", "keep", "abort"]


@pytest.mark.parametrize(
    "key",
    [key for key in KNOWN if key.path.startswith(("actor.optimizer.", "actor.lora.")) and key.limits.startswith(">")],
    ids=lambda key: key.path,
)
def test_the_range_of_an_optimizer_s_key_is_the_one_planning_checks(key: Key) -> None:
    """It stands in metadata, and planning knows it by itself: the two agree."""
    below = 0 if key.limits == "> 0" or key.limits == ">= 1" else -1
    name, role = key.name, RoleConfig(lora=LoraSpec(rank=1, alpha=1.0, targets=("x",)))
    assert role.lora is not None

    with pytest.raises(PlanError, match=f"{name} is {below}"):
        if ".lora." in key.path:
            plan_lora("actor", evolve(role.lora, **{name: below}))
        else:
            check_optimizer("actor", evolve(role.optimizer, **{name: below}))


def test_options_of_a_plugin_stand_under_its_key() -> None:
    """With the path a yaml has."""
    options = find.option_keys(Registry(), BY_PATH["actor.options"], "fsdp")

    assert "actor.options.wrap" in [key.path for key in options]
    with pytest.raises(BackendNotFound, match="no train plugin is called 'fsd'"):
        find.option_keys(Registry(), BY_PATH["actor.options"], "fsd")


@pytest.mark.parametrize(
    ("word", "near"),
    [
        ("rollout.max_stalenes", "'rollout.max_staleness'"),
        ("lr", "'actor.optimizer.lr'"),
        ("optimizer.lr", "'actor.optimizer.lr'"),
        ("group_siz", "'rollout.group_size'"),
        ("temperature", "'rollout.sampling.temperature' or 'evaluation.temperature'"),
    ],
)
def test_a_name_no_key_has_is_answered_by_near_ones(word: str, near: str) -> None:
    """By what it ends with, else by how it is written."""
    assert f"did you mean {near}" in str(find.unknown(word, KNOWN))


def test_meanings_are_read_below_fields_and_members() -> None:
    """Those of a class it inherits from too; on one line; None is null in a yaml."""

    @frozen
    class Base:
        """A base.

        More of it.
        """

        a: int = 1
        """Of a
        base; None is none."""

    @frozen
    class Options(Base):
        b: int = 2
        """Of b. And more."""
        c: int = 3

    class Choice(StrEnum):
        ONE = "one"
        """The first."""

    assert meanings(Options) == {"a": "Of a base; null is none.", "b": "Of b. And more."}
    assert meanings(Choice) == {"ONE": "The first."}
    assert (about(Base), first_sentence("Of b. And more.")) == ("A base.", "Of b")
    assert in_words({"minimum": 0, "exclusiveMaximum": 1}) == ">= 0, < 1"
