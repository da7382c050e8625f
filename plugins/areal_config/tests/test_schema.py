"""The JSON schema allows what a run takes and refuses what it does not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attrs import field, frozen, validators
from jsonschema import Draft202012Validator
from omegaconf import OmegaConf

from areal_config.find import run_keys
from areal_config.keys import Key
from areal_config.schema import class_schema, run_schema
from areal_core.config.load import load_config
from areal_core.config.schema import RunConfig
from areal_core.contract.errors import ConfigError
from areal_core.plugins.registry import Registry
from areal_core.plugins.structure import unstructure

ROOT = Path(__file__).parents[3]
EXAMPLES = sorted([*ROOT.glob("examples/**/*.yaml"), *ROOT.glob("plugins/areal_tasks/src/**/*.yaml")])
VALUES = [True, 1, -1, 0, 0.5, 1e9 + 0.5, "x", "group", None, [], ["a"], [1, 2], {}, {"a": 1}, "${seed}"]


@pytest.fixture(scope="module")
def whole() -> Draft202012Validator:
    """The schema with the options of everything installed."""
    return Draft202012Validator(run_schema(Registry()))


@pytest.fixture(scope="module")
def core() -> Draft202012Validator:
    """The schema of a run without plugins."""
    return Draft202012Validator(run_schema())


def nested(path: str, value: object) -> dict[str, Any]:
    """Return a run that sets one key, and what stands beside it and is needed."""
    for word in reversed(path.split(".")):
        value = {word.removesuffix("[]"): [value] if word.endswith("[]") else value}
    assert isinstance(value, dict)
    return value


def test_it_is_a_schema(whole: Draft202012Validator) -> None:
    """Of the draft it names, and it can be written down."""
    Draft202012Validator.check_schema(whole.schema)
    assert json.loads(json.dumps(whole.schema)) == whole.schema
    assert whole.schema["$schema"] == Draft202012Validator.META_SCHEMA["$id"]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_allowed(path: Path, whole: Draft202012Validator) -> None:
    """With its interpolations, as an editor sees it."""
    content = OmegaConf.to_container(OmegaConf.load(path))

    assert [error.message for error in whole.iter_errors(content)] == []


def test_the_defaults_are_allowed(whole: Draft202012Validator) -> None:
    """What a run's config.yaml holds validates too."""
    assert [error.message for error in whole.iter_errors(unstructure(RunConfig()))] == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"step": 5},
        {"steps": "many"},
        {"steps": 0},
        {"steps": True},
        {"rollout": {"staleness_policy": "wai"}},
        {"rollout": {"sampling": {"temperature": -1}}},
        {"rollout": {"sampling": {"top_p": 1.5}}},
        {"rollout": {"backend": "vllm:d1", "options": {"kv_cach_gib": 8}}},
        {"rollout": {"backend": "vllm:d1", "options": {"device_memory_share": 1.5}}},
        {"actor": {"backend": "fsdp:d2", "options": {"wrap": "leaf"}}},
        {"actor": {"optimizer": {"schedule": "cosin"}}},
        {"actor": {"optimizer": {"betas": [0.9]}}},
        {"actor": None},
        {"critic": {"backend": 5}},
        {"data": {"name": "spell", "options": {"splitt": "held"}}},
        {"loggers": [{"options": {}}]},
        {"loggers": [{"name": "prometheus", "options": {"port": 70000}}]},
        {"guard": {"no_reward_signals": 5}},
        {"profile": {"step": [5]}},
        {"algorithm": {"advantages": {"gamma": 2}}},
        {"model": {"dtype": "float8"}},
        {"weight_sync": {"pause": "stop"}},
    ],
    ids=str,
)
def test_a_wrong_run_is_refused(wrong: dict[str, Any], whole: Draft202012Validator) -> None:
    """Unknown keys, types, ranges, choices; of plugins too."""
    assert not whole.is_valid(wrong)


@pytest.mark.parametrize(
    "key",
    [key for key in run_keys() if not key.path.startswith(("guard", "profile"))],
    ids=lambda key: key.path,
)
def test_the_schema_and_the_loader_agree(key: Key, core: Draft202012Validator) -> None:
    """For each key of a run and many values: what one refuses the other refuses."""
    for value in VALUES:
        content = nested(key.path, value)
        try:
            load_config(base=content)
            loads = True
        except ConfigError:
            loads = False

        if core.is_valid(content) != loads:
            assert interpolated(value) or planned(key, value), f"{key.path}={value!r} loads: {loads}"


def interpolated(value: object) -> bool:
    """Tell whether the schema cannot know what the value will be."""
    return value == "${seed}"


def planned(key: Key, value: object) -> bool:
    """Tell whether another refuses the value: the plan, of bounds that stand in metadata; who knows the presets."""
    if key.path == "algorithm.preset":
        return isinstance(value, str)
    return key.path.rpartition(".")[0].endswith(("sampling", "optimizer", "lora")) and isinstance(
        value, float | int | str
    )


@pytest.mark.parametrize(
    ("validator", "allowed", "refused"),
    [
        (validators.ge(1), 1, 0),
        (validators.gt(1), 2, 1),
        (validators.le(1), 1, 2),
        (validators.lt(1), 0, 1),
        ([validators.ge(0), validators.lt(2)], 1, 2),
        (validators.in_((1, 3)), 3, 2),
        (validators.optional(validators.ge(1)), 1, 0),
    ],
)
def test_limits_of_validators_are_in_the_schema(validator: Callable[..., Any], allowed: int, refused: int) -> None:
    """Each kind that bounds a number."""

    @frozen
    class Options:
        value: int = field(default=1, validator=validator)

    schema = Draft202012Validator(class_schema(Options))

    assert schema.is_valid({"value": allowed}) and not schema.is_valid({"value": refused})


def test_a_text_has_limits_too() -> None:
    """Its length and its pattern."""

    @frozen
    class Options:
        name: str = field(default="x", validator=validators.min_len(1))
        word: str = field(default="x", validator=validators.matches_re("[a-z]+"))

    schema = Draft202012Validator(class_schema(Options))

    assert schema.is_valid({"name": "a", "word": "b"})
    assert not schema.is_valid({"name": ""}) and not schema.is_valid({"word": "5"})
