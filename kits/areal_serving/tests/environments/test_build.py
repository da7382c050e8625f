"""Making an environment: what is in it at the end, and what is left when it does not come to an end."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from attrs import evolve

from areal_core.contract.errors import EngineMissing
from areal_serving.environments import build, places
from areal_serving.environments.exclusive import exclusive
from areal_serving.environments.installers import Installer, find_uv, parse_pip_config, pip_installer, uv_installer
from areal_serving.environments.recipe import Recipe


def run(folder: Path, code: str) -> str:
    """Run a line under an environment's interpreter and return what it prints."""
    command = [str(places.interpreter(folder)), "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd="/").stdout.strip()


def broken(installer: Installer, code: str) -> Installer:
    """Return an installer whose pip is a Python program."""
    return evolve(installer, pip=lambda folder: [sys.executable, "-c", code])


def test_the_lock_and_the_files_are_in_it(recipe: Recipe, installer: Installer, tmp_path: Path) -> None:
    """Packages of the lock and nothing else, files laid in, one put before what the package brought."""
    told: list[build.Step] = []

    built = build.create(recipe, installer, within=tmp_path / "envs", ours=(), tell=told.append)

    assert (built.fresh, built.folder) == (True, tmp_path / "envs/tiny-cpu")
    assert run(built.folder, "import tiny_engine as e, tiny_part; print(e.tiny_kernels.FAST, e.name())") == (
        "False as published"
    )
    assert (built.marker.engine_version, built.marker.digest) == ("1.0", recipe.digest())
    assert [step.index for step in told if not step.detail] == [1, 2, 3, 4, 5]
    assert any("tiny-part" in step.detail or "tiny_part" in step.detail for step in told)


def test_an_installers_cache_is_not_written_to(recipe: Recipe, installer: Installer, tmp_path: Path) -> None:
    """Installed files may be links to a cache that the next environment is made from."""
    cached = tmp_path / "cached.py"
    cached.write_text("")
    site = f"lib/python{recipe.python}/site-packages/tiny_engine"
    linking = f"import os; os.makedirs({site!r}); os.link({str(cached)!r}, {site + '/__init__.py'!r})"

    def command(folder: Path) -> list[str]:
        return [sys.executable, "-c", f"import os; os.chdir({str(folder)!r}); {linking}"]

    built = build.create(recipe, evolve(installer, pip=command), within=tmp_path / "envs", ours=())

    assert (built.folder / site / "__init__.py").read_text() == "import tiny_kernels\n"
    assert cached.read_text() == ""


def test_a_second_time_there_is_nothing_to_do(recipe: Recipe, whole: Callable[[Recipe], Path]) -> None:
    """The same lock makes the same environment; no installer is run."""
    folder = whole(recipe)

    built = build.create(recipe, Installer(name="none", make=fail, pip=fail), within=folder.parent, ours=())

    assert (built.fresh, built.folder) == (False, folder)


@pytest.mark.parametrize("why", ["forced", "another lock", "a laid file changed"])
def test_it_is_made_anew(
    why: str, recipe: Recipe, installer: Installer, whole: Callable[[Recipe], Path], locked: Callable[..., str]
) -> None:
    """By wish, or when anything that decides its content is different."""
    folder = whole(recipe)
    if why == "another lock":
        recipe.lock_file.write_text(locked("tiny-engine==2.0"))
        recipe = evolve(recipe, files="")
    if why == "a laid file changed":
        (recipe.folder.parent / "cpu/tiny_kernels.py").write_text("FAST = 1\n")

    built = build.create(recipe, installer, within=folder.parent, ours=(), force=why == "forced")

    assert built.fresh
    assert run(folder, "from importlib.metadata import version; print(version('tiny-engine'))") == (
        "2.0" if why == "another lock" else "1.0"
    )
    assert sorted(path.name for path in folder.parent.iterdir()) == [".tiny-cpu.lock", "tiny-cpu"]


def test_a_failure_leaves_nothing_and_shows_the_last_lines(
    recipe: Recipe, installer: Installer, locked: Callable[..., str], tmp_path: Path
) -> None:
    """A version that is nowhere: pip says so, and the folder is gone."""
    recipe.lock_file.write_text(locked("tiny-engine==7.0"))

    with pytest.raises(EngineMissing) as caught:
        build.create(recipe, installer, within=tmp_path / "envs", ours=())

    assert "installing 1 packages failed" in caught.value.what
    assert "tiny-engine==7.0" in caught.value.why
    assert not (tmp_path / "envs/tiny-cpu").exists()


def test_a_failure_leaves_the_one_before(recipe: Recipe, installer: Installer, whole: Callable[[Recipe], Path]) -> None:
    """Whoever runs an older environment keeps it until there is a better one."""
    folder = whole(recipe)
    before = places.read_marker(folder)

    with pytest.raises(EngineMissing):
        build.create(recipe, broken(installer, "raise SystemExit(3)"), within=folder.parent, ours=(), force=True)

    assert (places.is_whole(folder), places.read_marker(folder)) == (True, before)


def test_an_interrupt_ends_the_installer_and_leaves_nothing(
    recipe: Recipe, installer: Installer, tmp_path: Path
) -> None:
    """Ctrl-C in the middle of the longest step."""
    endless = broken(installer, "import os, threading; print(os.getpid(), flush=True); threading.Event().wait()")
    told: list[str] = []

    def tell(step: build.Step) -> None:
        told.append(step.detail)
        if step.detail:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build.create(recipe, endless, within=tmp_path / "envs", ours=(), tell=tell)

    assert not Path(f"/proc/{told[-1]}").exists()
    assert [path.name for path in (tmp_path / "envs").iterdir()] == [".tiny-cpu.lock"]


def test_what_a_killed_build_left_is_cleared(recipe: Recipe, whole: Callable[[Recipe], Path]) -> None:
    """Without its marker a folder counts for nothing; the environment that had given way comes back."""
    folder = whole(recipe)
    folder.rename(folder.with_name(".tiny-cpu.previous"))
    places.interpreter(folder).parent.mkdir(parents=True)

    built = build.create(recipe, Installer(name="none", make=fail, pip=fail), within=folder.parent, ours=())

    assert (built.fresh, places.is_whole(folder)) == (False, True)
    assert sorted(path.name for path in folder.parent.iterdir()) == [".tiny-cpu.lock", "tiny-cpu"]


def test_two_commands_do_not_build_one_environment(recipe: Recipe, installer: Installer, tmp_path: Path) -> None:
    """The second is told so; it does not wait for minutes without a word."""
    with exclusive(tmp_path / "envs/tiny-cpu"), pytest.raises(EngineMissing, match="another command"):
        build.create(recipe, installer, within=tmp_path / "envs", ours=())


def test_an_engine_that_is_not_there_afterwards_is_a_failure(
    recipe: Recipe, installer: Installer, locked: Callable[..., str], tmp_path: Path
) -> None:
    """A lock without the engine makes no environment."""
    recipe.lock_file.write_text(locked("tiny-part==0.5"))

    with pytest.raises(EngineMissing, match="cannot run tiny"):
        build.create(evolve(recipe, files=""), installer, within=tmp_path / "envs", ours=())

    assert not (tmp_path / "envs/tiny-cpu").exists()


def test_another_python_or_machine_is_refused_before_anything_is_made(
    recipe: Recipe, installer: Installer, tmp_path: Path
) -> None:
    """A lock holds for one version of Python and one kind of processor."""
    for other in (evolve(recipe, python="2.6"), evolve(recipe, platform="pdp11-manylinux_2_34")):
        with pytest.raises(EngineMissing, match=r"to make the environment|cannot be made on this machine"):
            build.create(other, installer, within=tmp_path / "envs", ours=())
    with pytest.raises(EngineMissing, match="cannot be used"):
        build.create(evolve(recipe, python="2.6"), installer, within=tmp_path / "envs", python=sys.executable, ours=())

    assert [path.name for path in (tmp_path / "envs").iterdir()] == [".tiny-cpu.lock"]


def test_only_environments_are_removed(tmp_path: Path, recipe: Recipe, whole: Callable[[Recipe], Path]) -> None:
    """A typing error must not cost a folder."""
    (tmp_path / "thesis").mkdir()
    folder = whole(recipe)

    build.remove(folder)
    for other in (tmp_path / "thesis", folder):
        with pytest.raises(EngineMissing, match="not an environment made by areal"):
            build.remove(other)

    assert (folder.exists(), (tmp_path / "thesis").exists()) == (False, True)


def test_real_pip_and_real_uv(recipe: Recipe, wheels: Path, tmp_path: Path) -> None:
    """Both make the same environment; uv is told what pip knows from its configuration."""
    uv = find_uv()
    installers = [pip_installer()]
    if uv is not None:
        installers.append(uv_installer(uv, {"no-index": "true", "find-links": str(wheels)}))

    for each in installers:
        built = build.create(recipe, each, within=tmp_path / each.name, ours=())
        assert run(built.folder, "import tiny_engine as e; print(e.name())") == "as published"


def test_a_higher_version_on_another_index_is_not_taken() -> None:
    """The first index that has a package wins, whatever pip was told besides: uv's words for it come last."""
    odd = {"index-url": "https://one.example", "find-links": "/a", "no-index": "true", "extra-index-url": "https://two"}

    for config in ({}, odd):
        command = uv_installer("uv", config).pip(Path("/envs/tiny"))
        assert command[-2:] == ["--index-strategy", "first-index"] and "https://two" not in command


@pytest.mark.parametrize("which", ["pip", "uv"])
def test_a_file_of_another_hash_is_not_installed(
    which: str, recipe: Recipe, wheels: Path, publish: Callable[..., None], tmp_path: Path
) -> None:
    """The index, or who stands before it, gives another file under the same name and version."""
    uv = find_uv()
    if which == "uv" and uv is None:
        pytest.skip("uv is not here")
    config = {"no-index": "true", "find-links": str(wheels)}
    installer = pip_installer() if which == "pip" or uv is None else uv_installer(uv, config)
    publish("tiny-engine", "1.0", "def name(): return 'as somebody else would have it'\n")

    with pytest.raises(EngineMissing, match=r"[Hh](ash|ASH)"):
        build.create(recipe, installer, within=tmp_path / "envs", ours=())

    assert not (tmp_path / "envs/tiny-cpu").exists()


def test_a_lock_without_hashes_is_refused_before_anything_is_made(recipe: Recipe, tmp_path: Path) -> None:
    """Also one of a single package without; the command that adds them is named."""
    recipe.lock_file.write_text(recipe.lock_file.read_text() + "tiny-other==1.0\n")

    with pytest.raises(EngineMissing, match=r"no hash of tiny-other==1\.0(.|\n)*areal env lock tiny .*--keep"):
        build.create(recipe, Installer(name="none", make=fail, pip=fail), within=tmp_path / "envs", ours=())


def test_further_indexes_are_asked_for_local_versions_alone(
    recipe: Recipe, locked: Callable[..., str], publish: Callable[..., None], tmp_path: Path
) -> None:
    """An index of CPU builds has other packages too, in other versions: nothing but `+cpu` is taken from it."""
    publish("tiny-part", "0.5+cpu")
    recipe.lock_file.write_text(locked("tiny-engine==1.0", "tiny-part==0.5+cpu"))
    shown = "import pathlib, sys; print(*sys.argv[1:], pathlib.Path(sys.argv[-1]).read_text())"
    told: list[str] = []
    installer = evolve(
        uv_installer("uv", {"extra-index-url": "https://cpu.example"}),
        make=lambda folder, python: [sys.executable, "-m", "venv", "--without-pip", str(folder)],
        pip=lambda folder: [sys.executable, "-c", shown],
    )

    with pytest.raises((EngineMissing, OSError)):  # nothing was installed: there is nothing to lay files beside
        build.create(recipe, installer, within=tmp_path / "envs", ours=(), tell=lambda step: told.append(step.detail))
    asked = {line.partition("==")[0].split()[-1]: "--extra-index-url" in line for line in told if "==" in line}

    assert asked == {"tiny-engine": False, "tiny-part": True}


def test_pips_configuration_is_read_as_pip_does() -> None:
    """Its own section beats the global one, the environment beats both, and several values are several."""
    lines = [
        ":env:.find-links='/env'",
        "global.find-links='/a /b'",
        "global.index-url='https://one.example/simple'",
        "install.index-url='https://two.example/simple'",
    ]

    assert parse_pip_config(lines) == {"find-links": "/env", "index-url": "https://two.example/simple"}


def fail(*_: object) -> list[str]:
    """Stand where no command may be asked for."""
    raise AssertionError("nothing is to be run")
