"""Which interpreter is found, in which order, and what is said when there is none."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from attrs import evolve

from areal_conformance.probes.distributions import manifest_source, write_distribution
from areal_core.contract.errors import CapabilityError, EngineMissing, ManifestError
from areal_core.plugins.manifest import Manifest
from areal_core.plugins.registry import Registry
from areal_serving.environment import find
from areal_serving.environments import build, lookup, places
from areal_serving.environments.installers import Installer
from areal_serving.environments.inventory import State, environments, recipe_for
from areal_serving.environments.recipe import Lock, Recipe, parse_lock, read_recipe, write_lock
from areal_serving.environments.sources import pip_arguments


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder on this process's path."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    return folder


@pytest.fixture
def envs(tmp_path: Path) -> dict[str, str]:
    """Return the variables that put environments into a folder of the test."""
    return {places.ROOT_VARIABLE: str(tmp_path / "envs")}


def test_an_environment_is_found_by_engine_and_device(
    recipe: Recipe, whole: Callable[[Recipe], Path], envs: dict[str, str]
) -> None:
    """The folder of environments is all that has to be known."""
    folder = whole(recipe)

    found = lookup.find(recipe, environ=envs)

    assert (found.path, found.engine_version, found.warnings) == (folder / "bin/python", "1.0", ())
    with pytest.raises(EngineMissing, match="for cuda"):
        lookup.find(evolve(recipe, device="cuda"), environ=envs)


def test_none_at_all_gives_the_command_that_makes_one(recipe: Recipe, envs: dict[str, str]) -> None:
    """The message can be copied into the shell."""
    with pytest.raises(EngineMissing) as caught:
        lookup.find(recipe, environ=envs)

    assert caught.value.what == "tiny has no environment for cpu"
    assert caught.value.fix == "areal env create tiny --device cpu"


def test_a_half_made_one_is_not_found(recipe: Recipe, whole: Callable[[Recipe], Path], envs: dict[str, str]) -> None:
    """Neither without a marker, nor with a torn one, nor without its interpreter."""
    folder = whole(recipe)
    marker = (folder / places.MARKER).read_text()

    for torn in ("", marker[: len(marker) // 2], "[]"):
        (folder / places.MARKER).write_text(torn)
        with pytest.raises(EngineMissing, match="never finished"):
            lookup.find(recipe, environ=envs)
    (folder / places.MARKER).write_text(marker)
    places.interpreter(folder).unlink()
    with pytest.raises(EngineMissing, match="never finished"):
        lookup.find(recipe, environ=envs)


def test_an_out_of_date_one_is_used_with_a_warning(
    recipe: Recipe, whole: Callable[[Recipe], Path], envs: dict[str, str]
) -> None:
    """A run goes on; its owner learns what to type."""
    whole(recipe)
    recipe.lock_file.write_text("tiny-engine==2.0\n")

    (warning,) = lookup.find(recipe, environ=envs).warnings

    assert "from another lock than areal-tiny has" in warning
    assert warning.endswith("areal env create tiny --device cpu")


def test_the_named_interpreter_is_the_only_one_looked_at(
    recipe: Recipe, whole: Callable[[Recipe], Path], installer: Installer, envs: dict[str, str], tmp_path: Path
) -> None:
    """A mistake in a name is not papered over by an environment elsewhere."""
    whole(recipe)
    made = build.create(recipe, installer, within=tmp_path / "by hand", ours=())

    found = lookup.find(recipe, python=str(made.folder / "bin/python"), environ=envs)

    assert (found.path, found.origin, found.engine_version) == (made.folder / "bin/python", "named", "1.0")
    with pytest.raises(EngineMissing, match="is not an interpreter"):
        lookup.find(recipe, python="/no/such/python", environ=envs)
    with pytest.raises(EngineMissing, match="cannot run tiny"):
        lookup.find(recipe, python=sys.executable, environ=envs)


def test_the_workers_interpreter_comes_before_environments(
    recipe: Recipe, whole: Callable[[Recipe], Path], installer: Installer, envs: dict[str, str], tmp_path: Path
) -> None:
    """If it has the engine; else the environment serves it as well."""
    managed = whole(recipe)
    made = build.create(recipe, installer, within=tmp_path / "by hand", ours=())

    with_engine = lookup.find(recipe, worker=str(made.folder / "bin/python"), environ=envs)
    without = lookup.find(recipe, worker=sys.executable, environ=envs)

    assert (with_engine.path, without.path) == (made.folder / "bin/python", managed / "bin/python")


def test_this_interpreter_counts_if_it_has_the_engine(
    recipe: Recipe, site: Path, envs: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told by its metadata and not by importing it; a folder that is only called like it does not count."""
    write_distribution(site, "tiny-engine", version="3.1", modules={"tiny_engine": "raise RuntimeError('imported')"})

    found = lookup.find(recipe, environ=envs)

    assert (found.path, found.engine_version, found.origin) == (Path(sys.executable), "3.1", "this interpreter")
    (site / "tiny_other").mkdir()
    with pytest.raises(EngineMissing):
        lookup.find(evolve(recipe, engine="tiny_other"), environ=envs)


def test_where_environments_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """AREAL_ENVS, else the user's data folder as the desktop standard has it."""
    monkeypatch.setenv("HOME", str(tmp_path))

    assert places.root({"AREAL_ENVS": "/a", "XDG_DATA_HOME": "/b"}) == Path("/a")
    assert places.root({"XDG_DATA_HOME": "/b"}) == Path("/b/areal/envs")
    assert places.root({}) == tmp_path / ".local/share/areal/envs"


def test_a_manifest_leads_to_its_recipe(
    site: Path, recipe: Recipe, whole: Callable[[Recipe], Path], envs: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By name alone, as a worker asks for it; the plugin's package is not imported."""
    install_plugin(site)
    monkeypatch.setenv(places.ROOT_VARIABLE, envs[places.ROOT_VARIABLE])
    registry = Registry(environ={})
    theirs = recipe_for(registry, "tiny", "cpu")
    folder = whole(theirs)

    assert (theirs.engine, theirs.lock().pins) == ("tiny_engine", ("tiny-engine==1.0",))
    assert find("tiny", "cpu", registry=registry).path == folder / "bin/python"
    assert registry.probe("infer", "tiny").environments["cpu"].path == folder / "bin/python"
    assert [(each.name, each.state) for each in environments(registry, folder.parent)] == [("tiny", State.OK)]
    with pytest.raises(EngineMissing, match="never built for it"):
        recipe_for(registry, "tiny", "npu").lock()
    with pytest.raises(EngineMissing, match="recipes for cpu, npu"):
        recipe_for(registry, "tiny", "cuda")
    with pytest.raises(CapabilityError, match="no environment of its own"):
        recipe_for(registry, "reference", "cpu")


def test_without_an_environment_the_probe_says_so(
    site: Path, envs: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plugin is not usable without its engine, wherever the engine would be."""
    install_plugin(site)
    monkeypatch.setenv(places.ROOT_VARIABLE, envs[places.ROOT_VARIABLE])

    found = Registry(environ={}, devices=lambda: frozenset({"cpu"})).probe("infer", "tiny")

    assert (found.ok, found.missing) == (False, ())
    assert (found.summary, found.fix) == ("tiny has no environment for cpu", "areal env create tiny --device cpu")


def test_a_manifest_that_leads_nowhere_is_named() -> None:
    """A folder that is not there, and a package that is not there."""
    for environment in ("areal_core:nowhere", "areal_nowhere:locks", "areal_core"):
        manifest = Manifest(role="infer", name="lost", contract=(1, 0), factory="a:b", environment=environment)
        with pytest.raises(ManifestError, match="lost"):
            read_recipe(manifest, "cpu")


def test_a_lock_is_read_as_it_is_written() -> None:
    """Its facts stand at the head, and its pins below."""
    lock = Lock(
        pins=("a==1", "b==2+cpu"), facts={"engine": "a 1", "made": "areal env lock a"}, hashes={"a==1": ("0", "1")}
    )

    assert parse_lock(write_lock(lock, "A title.")) == lock
    assert lock.version("b") == "2+cpu"
    assert lock.line("a==1") == "a==1 --hash=sha256:0 --hash=sha256:1"


def test_our_packages_are_installed_as_they_are_here(site: Path) -> None:
    """A checkout stays one, an archive comes from where it came, anything else by its version."""
    origins = {
        "from-checkout": {"url": "file:///src/our%20core", "dir_info": {"editable": True}},
        "from-folder": {"url": "file:///src/core", "dir_info": {}},
        "from-git": {"url": "https://git.example/core", "vcs_info": {"vcs": "git", "commit_id": "f00"}},
        "from-index": None,
    }
    for name, origin in origins.items():
        write_distribution(site, name, version="1.2")
        if origin is not None:
            (site / f"{name.replace('-', '_')}-1.2.dist-info/direct_url.json").write_text(json.dumps(origin))

    assert [pip_arguments(name) for name in origins] == [
        ["-e", "/src/our core"],
        ["/src/core"],
        ["from-git @ git+https://git.example/core@f00"],
        ["from-index==1.2"],
    ]
    with pytest.raises(EngineMissing, match="not installed here"):
        pip_arguments("from-nowhere")


def install_plugin(site: Path) -> None:
    """Install areal-tiny with recipes for cpu, and for npu with the reason why there is none."""
    source = manifest_source("infer", "tiny", environment="areal_tiny_plugin:locks", devices=("cpu", "npu"))
    write_distribution(
        site,
        "areal-tiny",
        entry_points={"areal.infer": {"tiny": "tiny_manifest:MANIFEST"}},
        modules={"tiny_manifest": source, "areal_tiny_plugin.engine": "raise RuntimeError('imported')"},
    )
    (site / "areal_tiny_plugin/__init__.py").write_text("raise RuntimeError('imported')")
    (site / "areal_tiny_plugin/locks").mkdir()
    (site / "areal_tiny_plugin/locks/cpu.txt").write_text("tiny-engine==1.0\n")
    (site / "areal_tiny_plugin/locks/recipe.toml").write_text(
        'engine = "tiny_engine"\nplugin = "areal-tiny"\n[cpu]\ndistribution = "tiny-engine"\n'
        '[npu]\nabsent = "never built for it"\n'
    )
