"""Models drawn from what config.json of families can say: what a sample covers, and what a folder holds."""

from __future__ import annotations

import json
from itertools import combinations, islice
from pathlib import Path
from typing import Any

import pytest
import torch

from areal_conformance.adapter import Adapter
from areal_conformance.target import Locator, Target
from areal_conformance.zoo.architectures import ARCHITECTURES
from areal_conformance.zoo.covering import covering
from areal_conformance.zoo.folders import GENERATION, folder_of, write
from areal_conformance.zoo.sample import claimed, count, unclaimed
from areal_conformance.zoo.traits import OPTIONAL, TRAITS, Drawn
from areal_conformance.zoo.truth import Truth
from areal_core.plugins.registry import Registry

AXES = {"a": ("1", "2", "3", "4"), "b": ("x", "y"), "c": ("p", "q", "r"), "d": ("u", "v")}


def target(zoo: int = 0, **fields: Any) -> Target:
    """Return a target whose adapter says this. Any: fields of an adapter."""
    locator = Locator(role="train", name="any", zoo=zoo)
    return Target(locator=locator, registry=Registry(), adapter=Adapter(**fields))


def test_a_sample_has_every_value_at_once_and_every_pair_in_the_end() -> None:
    rows = list(covering(AXES))

    first = {pair for row in rows[:4] for pair in row.items()}
    assert first == {(axis, value) for axis, values in AXES.items() for value in values}
    for one, other in combinations(AXES, 2):
        assert {(row[one], row[other]) for row in rows} == {(a, b) for a in AXES[one] for b in AXES[other]}
    assert len(rows) < 24
    assert rows == list(covering(AXES))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_family_can_be_drawn(name: str) -> None:
    """Transformers opens what is written, and the next token matters."""
    drawn = next(Drawn(name, values) for values in islice(covering(ARCHITECTURES[name].axes), 1))

    logits = Truth(folder_of(drawn)).model(input_ids=torch.arange(2, 62)[None]).logits

    assert logits.isfinite().all()
    assert logits.std() > 0.1


def test_a_folder_says_what_was_drawn_with_the_same_bytes(tmp_path: Path) -> None:
    values = {"place": "old_type", "rope": "linear", "eps": "coarse", "files": "several", "generation": "sampling"}
    one, other = (write(tmp_path / name, Drawn("llama", values, seed=3)) for name in ("one", "other"))

    config = json.loads((one / "config.json").read_text())
    assert config["rope_scaling"] == {"type": "linear", "factor": 3.0}
    assert (config["rope_theta"], config["rms_norm_eps"]) == (10000.0, 0.03)
    assert "rope_parameters" not in config
    assert json.loads((one / "generation_config.json").read_text()) == GENERATION
    assert len(list(one.glob("*.safetensors"))) > 1
    files = sorted(path.name for path in one.iterdir())
    assert [(one / name).read_bytes() for name in files] == [(other / name).read_bytes() for name in files]


def test_only_what_is_claimed_must_work() -> None:
    mine = target(models=("llama",), architectures=("granite",), traits=("rope.yarn", "biases"))

    assert not list(claimed(mine, "qwen3"))
    assert {trait for model in claimed(target(99, models=("llama",), traits=mine.adapter.traits), "llama")
            for trait in model.traits} == {"rope.yarn", "biases"}  # fmt: skip
    assert [count(mine, name) for name in ("llama", "granite")] == [5, 3]
    assert [model.traits for model in unclaimed(mine, "granite")] == [
        {"rope.linear"}, {"rope.dynamic"}, {"rope.llama3"}, {"activation"},
    ]  # fmt: skip
    assert [model.traits for model in unclaimed(mine, "mistral")] == [set(), {"window"}]


def test_slow_engines_are_asked_for_little() -> None:
    slow: Any = {"models": ("llama",), "slow_start": True}

    assert (len(list(claimed(target(**slow), "llama"))), list(unclaimed(target(**slow), "llama"))) == (1, [])
    assert len(list(claimed(target(7, **slow), "llama"))) == 7


def test_every_trait_can_be_drawn() -> None:
    drawn = {
        (axis, value) for family in ARCHITECTURES.values() for axis, values in family.axes.items() for value in values
    }

    assert set(OPTIONAL) <= drawn
    assert len(set(TRAITS)) == len(TRAITS)
