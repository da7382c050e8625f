"""A run whose engine has no interpreter is refused while planning, unless it needs none."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from areal_conformance.probes.distributions import write_distribution
from areal_core.config.role_plan import check_environment
from areal_core.config.schema import RolloutConfig
from areal_core.contract.errors import ConfigError, EngineMissing
from areal_core.plugins.manifest import Manifest
from areal_serving.environments import places
from areal_serving.environments.recipe import read_recipe

OWN = Manifest(role="infer", name="tiny", contract=(1, 0), factory="a:b", environment="areal_tiny_env:locks")
SHARED = Manifest(role="infer", name="tiny", contract=(1, 0), factory="a:b")


@pytest.fixture(autouse=True)
def envs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install the recipe, and return the folder of environments."""
    site = tmp_path / "site"
    write_distribution(site, "areal-tiny", modules={"areal_tiny_env.engine": ""})
    (site / "areal_tiny_env/locks").mkdir()
    (site / "areal_tiny_env/locks/recipe.toml").write_text('engine = "tiny_engine"\nplugin = "areal-tiny"\n[cpu]\n')
    (site / "areal_tiny_env/locks/cpu.txt").write_text("tiny-engine==1.0\n")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv(places.ROOT_VARIABLE, str(tmp_path / "envs"))
    return tmp_path / "envs"


def test_it_is_refused_with_the_command() -> None:
    """Before anything starts."""
    with pytest.raises(EngineMissing) as caught:
        check_environment(RolloutConfig(backend="tiny:d1"), OWN, "cpu")

    assert caught.value.fix == "areal env create tiny --device cpu"


def test_a_run_that_needs_none_is_not() -> None:
    """A server that runs already, and an engine that lives in the trainer's environment."""
    served = RolloutConfig(backend="tiny:d1", options={"url": "http://127.0.0.1:1"})

    assert check_environment(served, OWN, "cpu") == []
    assert check_environment(RolloutConfig(backend="tiny:d1"), SHARED, "cpu") == []


def test_an_outdated_one_is_a_warning_of_the_plan(envs: Path) -> None:
    """The run starts, and its owner is told."""
    recipe = read_recipe(OWN, "cpu")
    folder = envs / "tiny-cpu"
    places.interpreter(folder).parent.mkdir(parents=True)
    places.interpreter(folder).symlink_to(sys.executable)
    marker = places.Marker(name="tiny", device="cpu", engine_version="1.0", python="", digest=recipe.digest())
    places.write_marker(folder, marker)

    assert check_environment(RolloutConfig(backend="tiny:d1"), OWN, "cpu") == []
    recipe.lock_file.write_text("tiny-engine==2.0\n")
    assert "out of date" in check_environment(RolloutConfig(backend="tiny:d1"), OWN, "cpu")[0]


def test_a_named_interpreter_must_have_the_engine() -> None:
    """It is asked; the word of a configuration is not enough."""
    named = RolloutConfig(backend="tiny:d1", options={"python": sys.executable})

    with pytest.raises(EngineMissing, match="cannot run tiny"):
        check_environment(named, OWN, "cpu")
    with pytest.raises(ConfigError, match="not the path of an interpreter"):
        check_environment(RolloutConfig(backend="tiny:d1", options={"python": 3}), OWN, "cpu")
