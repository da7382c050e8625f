"""`areal env` from the shell: what it prints, and that commands find each other's work."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.benches.command import Run

from areal_conformance.probes.distributions import manifest_source, write_distribution

PIN = f"tiny-engine==1.0 --hash=sha256:{64 * '0'}"
RECIPE = 'engine = "tiny_engine"\nplugin = "areal-tiny"\npython = "{}.{}"\n[cpu]\ndistribution = "tiny-engine"\n'


@pytest.fixture
def plugin(site: Path, tmp_path: Path) -> Path:
    """Install an inference backend whose engine is on no index, and return the folder of environments."""
    manifest = manifest_source("infer", "tiny", environment="areal_tiny:locks", devices=("cpu", "npu"))
    entry_points = {"areal.infer": {"tiny": "areal_tiny.manifest:MANIFEST"}}
    modules = {"areal_tiny.manifest": manifest, "areal_tiny.engine": "class Engine: ..."}
    write_distribution(site, "areal-tiny", entry_points=entry_points, modules=modules)
    (site / "areal_tiny/locks").mkdir()
    (site / "areal_tiny/locks/recipe.toml").write_text(RECIPE.format(*sys.version_info))
    (site / "areal_tiny/locks/cpu.txt").write_text(f"# status: unverified: no one tried\n{PIN}\n")
    return tmp_path / "envs"


def test_without_an_environment_every_command_says_what_to_do(areal: Run, plugin: Path) -> None:
    """path and remove refuse, list is empty, backends and doctor give the command."""
    envs = {"AREAL_ENVS": str(plugin)}

    path = areal("env", "path", "tiny-cpu", **envs)
    listed = areal("env", "list", **envs)
    removed = areal("env", "remove", "tiny-cpu", **envs)
    shown = areal("backends", "--role", "infer", **envs)
    doctor = areal("doctor", "--backend", "tiny", **envs)

    command = "areal env create tiny --device cpu"
    assert (path.returncode, path.stdout) == (1, "")
    assert f"fix: {command}" in path.stderr
    assert listed.stdout == f"none in {plugin}; make one with: areal env create NAME\n"
    assert (removed.returncode, removed.stdout) == (1, "")
    assert f"infer tiny: tiny has no environment for cpu\n    {command}\n" in shown.stdout
    assert doctor.returncode == 2 and f"fix: {command}" in doctor.stdout


def test_a_failed_create_shows_its_steps_and_the_installers_last_words(areal: Run, plugin: Path) -> None:
    """In a log there is one line per step, and nothing is left in the folder."""
    done = areal("env", "create", "tiny", "--device", "cpu", AREAL_ENVS=str(plugin), PIP_NO_INDEX="1", UV_OFFLINE="1")

    assert (done.returncode, done.stdout) == (1, "")
    assert "[1/5] 0:0" in done.stderr and "installing 1 packages" in done.stderr
    assert "tiny-engine" in done.stderr.partition("why:")[2]
    assert not (plugin / "tiny-cpu").exists()


def test_ctrl_c_leaves_nothing(plugin: Path, site: Path, tmp_path: Path) -> None:
    """In the middle of the longest step: an index that takes the connection and never answers."""
    environ = {key: value for key, value in os.environ.items() if key not in ("AREAL_PLUGINS", "PIP_FIND_LINKS")}
    with socket.create_server(("127.0.0.1", 0)) as index:
        index.settimeout(60)
        environ |= {
            "PYTHONPATH": str(site),
            "AREAL_ENVS": str(plugin),
            "PIP_INDEX_URL": f"http://127.0.0.1:{index.getsockname()[1]}/simple",
        }
        # A test run in the background of a shell has SIGINT ignored, and so would its children.
        code = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        code += "from areal_core.cli.main import main; sys.exit(main())"
        command = [sys.executable, "-c", code, "env", "create", "tiny", "--device", "cpu"]
        areal = subprocess.Popen(
            command,
            env=environ,
            cwd=tmp_path,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        with index.accept()[0]:
            there_before = (plugin / "tiny-cpu/pyvenv.cfg").is_file()
            os.killpg(areal.pid, signal.SIGINT)
            said = areal.communicate(timeout=60)[1]

    assert there_before
    assert (areal.returncode, said.splitlines()[-1]) == (130, "interrupted")
    assert [path.name for path in plugin.iterdir()] == [".tiny-cpu.lock"]


def test_a_backend_without_an_environment_is_told_apart(areal: Run, plugin: Path) -> None:
    """Not every backend has one, and not every device."""
    assert "it runs in the trainer's" in areal("env", "create", "reference").stderr
    assert "recipes for cpu" in areal("env", "create", "tiny", "--device", "npu").stderr
    assert "reference" in areal("env", "create", "nobody").stderr


def test_a_whole_one_is_listed_found_and_removed(areal: Run, plugin: Path, site: Path) -> None:
    """What one command leaves the next one finds; another lock makes it out of date."""
    from areal_serving.environments import places

    folder = plugin / "tiny-cpu"
    places.interpreter(folder).parent.mkdir(parents=True)
    places.interpreter(folder).symlink_to(sys.executable)
    marker = places.Marker(name="tiny", device="cpu", engine_version="1.0", python="3.11", digest="of another lock")
    places.write_marker(folder, marker)
    (plugin / "notes").mkdir()

    listed = areal("env", "list", "--folder", str(plugin))
    path = areal("env", "path", "tiny", "--device", "cpu", "--folder", str(plugin))
    removed = areal("env", "remove", "tiny-cpu", "--folder", str(plugin))

    assert [line.split()[:5] for line in listed.stdout.splitlines()[:2]] == [
        ["name", "device", "engine", "state", "folder"],
        ["tiny", "cpu", "1.0", "out", "of"],
    ]
    assert (path.returncode, path.stdout.strip()) == (0, str(folder / "bin/python"))
    assert "out of date" in path.stderr
    assert (removed.returncode, folder.exists(), (plugin / "notes").exists()) == (0, False, True)
