"""Probing, loading and building: what is missing is told apart from what is broken."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from areal_conformance.probes.distributions import manifest_source, write_distribution
from areal_core.contract.errors import BackendBroken, EngineMissing, ManifestError, UnknownKey, WrongType
from areal_core.plugins.manifest import Manifest
from areal_core.plugins.probe import probe
from areal_core.plugins.registry import Registry

CONFIG = """
    from attrs import frozen
    @frozen(kw_only=True)
    class Config:
        rate: float = 0.5
        shards: int = 1
"""
ENGINE = """
    class Engine:
        def __init__(self, config=None):
            self.config = config
"""


def plugin(site: Path, engine: str = ENGINE, **fields: object) -> None:
    """Write areal-toy with a manifest, a config and an engine module."""
    manifest = manifest_source("train", "toy", extra="engine", **fields)  # type: ignore[arg-type]
    modules = {"areal_toy.manifest": manifest, "areal_toy.engine": engine, "areal_toy.config": CONFIG}
    write_distribution(
        site, "areal-toy", entry_points={"areal.train": {"toy": "areal_toy.manifest:MANIFEST"}}, modules=modules
    )


def test_a_missing_engine_names_the_module_and_the_extra(site: Path) -> None:
    """A requirement that is not importable leads to one pip command."""
    plugin(site, requires=("absent-engine>=2",))
    registry = Registry()

    found = registry.probe("train", "toy")
    with pytest.raises(EngineMissing) as caught:
        registry.load("train", "toy")

    assert (found.ok, found.missing) == (False, ("absent-engine>=2",))
    assert caught.value.what == "train backend 'toy' is installed without its engine"
    assert caught.value.why == "missing: absent-engine>=2"
    assert caught.value.fix == "pip install 'areal-toy[engine]'"


def test_the_probe_imports_nothing(site: Path) -> None:
    """An engine that would crash the process is probed safely."""
    write_distribution(site, "engine-x", version="3.1", modules={"engine_x": "raise RuntimeError('imported')"})
    plugin(site, requires=("engine-x>=3",))

    found = Registry().probe("train", "toy")

    assert found.ok
    assert found.versions == {"engine-x": "3.1"}
    assert not {"engine_x", "areal_toy.engine"} & set(sys.modules)


def test_an_engine_too_old_is_missing_with_what_was_found(site: Path) -> None:
    """Versions are compared as versions: 3.10 is newer than 3.9."""
    write_distribution(site, "engine-x", version="3.10", modules={"engine_x": ""})
    plugin(site, requires=("engine-x>=3.9", "engine_x>=3.11"))
    registry = Registry()

    with pytest.raises(EngineMissing) as caught:
        registry.load("train", "toy")

    assert registry.probe("train", "toy").missing == ("engine_x>=3.11 (found 3.10)",)
    assert caught.value.why == "missing: engine_x>=3.11 (found 3.10)"


def test_metadata_without_the_module_counts_as_missing(site: Path) -> None:
    """A half-removed package is installed by its metadata and absent by its files."""
    write_distribution(site, "engine-x", version="3.1")
    plugin(site, requires=("engine-x",))

    assert Registry().probe("train", "toy").missing == ("engine-x (found 3.1, not importable)",)


def test_a_module_may_be_called_unlike_its_distribution(site: Path) -> None:
    """pyyaml brings yaml, and top_level.txt is asked for the unknown ones."""
    write_distribution(site, "brand-name", modules={"plain": ""})
    (site / "brand_name-1.0.dist-info" / "top_level.txt").write_text("_plain_c\nplain\n")
    plugin(site, requires=("pyyaml", "brand-name"))

    assert Registry().probe("train", "toy").ok


def test_a_requirement_for_another_python_is_not_asked_for(site: Path) -> None:
    """Environment markers are honoured."""
    plugin(site, requires=("absent-engine; python_version < '3'",))

    assert Registry().probe("train", "toy").ok


def test_a_requirement_that_cannot_be_parsed_is_the_manifests_fault(site: Path) -> None:
    """A typing error in a requirement is named, not guessed around."""
    plugin(site, requires=("torch=>2",))

    with pytest.raises(ManifestError) as caught:
        Registry().probe("train", "toy")

    assert "'torch=>2'" in caught.value.what


def test_without_a_device_the_plugin_is_not_ok() -> None:
    """The probe names the devices that would do."""
    manifest = Manifest(role="train", name="toy", contract=(1, 0), factory="a:b", devices=("npu", "cuda"))

    assert probe(manifest, "areal-toy", {"cpu"}).summary == "no device: needs npu or cuda"
    assert probe(manifest, "areal-toy", {"cpu", "cuda"}).devices == ("cuda",)
    assert probe(manifest, "areal-toy", {"cpu", "cuda"}).ok


def test_a_submodule_the_engine_lacks_is_a_missing_engine(site: Path) -> None:
    """The engine is importable, but not the part that the plugin needs: still the engine's matter."""
    write_distribution(site, "engine-x", modules={"engine_x": ""})
    plugin(site, "import engine_x.newer", requires=("engine-x",))

    with pytest.raises(EngineMissing) as caught:
        Registry().load("train", "toy")

    assert caught.value.why == "not importable: engine_x.newer"


@pytest.mark.parametrize("engine", ["import unrelated_module", "raise ImportError('libgone.so')", "1 / 0", "Engin = 1"])
def test_a_broken_plugin_is_not_called_a_missing_engine(site: Path, engine: str) -> None:
    """An import that fails for a reason the requirements do not explain is the plugin's fault."""
    plugin(site, engine)

    with pytest.raises(BackendBroken) as caught:
        Registry().load("train", "toy")

    assert caught.value.what == "train backend 'toy' of areal-toy 1.0 is broken"


def test_build_structures_the_options(site: Path) -> None:
    """Plain data becomes the plugin's own config class before the factory sees it."""
    plugin(site, config="areal_toy.config:Config")

    engine = Registry().build("train", "toy", {"rate": 2})

    assert (engine.config.rate, engine.config.shards) == (2.0, 1)  # type: ignore[attr-defined]


def test_a_config_instance_passes_through(site: Path) -> None:
    """Options checked by the controller are not checked again in the worker."""
    plugin(site, config="areal_toy.config:Config")
    registry = Registry()
    config = registry.options("train", "toy", {"shards": 3})

    engine = registry.build("train", "toy", config)  # type: ignore[arg-type]

    assert engine.config is config  # type: ignore[attr-defined]


def test_without_a_config_class_the_factory_is_called_with_nothing(site: Path) -> None:
    """Options for a plugin that takes none are an unknown key."""
    plugin(site)
    registry = Registry()

    engine = registry.build("train", "toy", {})
    with pytest.raises(UnknownKey) as caught:
        registry.build("train", "toy", {"rate": 1}, path="actor.options")

    assert engine.config is None  # type: ignore[attr-defined]
    assert caught.value.what == "unknown key 'actor.options.rate'"


@pytest.mark.parametrize(("options", "kind"), [({"raet": 1.0}, UnknownKey), ({"shards": "two"}, WrongType)])
def test_options_are_checked_before_the_engine_is_loaded(site: Path, options: dict[str, object], kind: type) -> None:
    """A wrong option is found without importing the engine, and its path begins where the options stand."""
    plugin(site, "raise RuntimeError('loaded')", config="areal_toy.config:Config")

    with pytest.raises(kind) as caught:
        Registry().build("train", "toy", options, path="actor.options")

    assert f"actor.options.{next(iter(options))}" in str(caught.value)
    assert "areal_toy.engine" not in sys.modules


def test_a_factory_that_cannot_be_called_is_broken(site: Path) -> None:
    """The manifest may name an object that is no factory."""
    plugin(site, "Engine = 5")

    with pytest.raises(BackendBroken) as caught:
        Registry().load("train", "toy")

    assert caught.value.why == "areal_toy.engine:Engine is of type int and cannot be called"
