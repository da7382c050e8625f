"""The command's frame: light, lazy, and calm in the face of bad plugins and bad input."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.benches.command import Run

from areal_conformance.probes.distributions import write_distribution
from areal_core import __version__
from areal_core.cli import main as frame
from areal_core.cli.main import COMMANDS, main
from areal_core.contract.errors import BackendNotFound, ConfigError
from areal_core.plugins import discovery
from areal_core.plugins.catalogue import COMMANDS as COMMANDS_OF_OTHERS
from areal_core.plugins.install import pip_install

HEAVY = ("torch", "transformers", "tensordict", "ray", "omegaconf", "cattrs")
HOOK = """
    from areal_core.plugins.hooks import Command, hookimpl

    @hookimpl
    def areal_cli_commands():
        return [Command(name="salute", target="saluting:salute", help="Say hello.")]
"""


def hook_plugin(site: Path, source: str) -> None:
    """Install a distribution with one hook module, and the command it may name."""
    modules = {"salute_hooks": source, "saluting": "def salute(name: str):\n    print('hello', name)\n    return 7\n"}
    write_distribution(site, "areal-salute", entry_points={"areal.hooks": {"salute": "salute_hooks"}}, modules=modules)


def test_help_names_every_command(areal: Run) -> None:
    """The listing needs no command to be importable."""
    done = areal("--help")

    assert (done.returncode, done.stderr) == (0, "")
    assert [name for name in COMMANDS if name not in done.stdout] == []


@pytest.mark.parametrize("words", [["--help"], ["--version"], []])
def test_the_frame_imports_nothing_heavy(words: list[str]) -> None:
    """Help and version cost no engine, no configuration library, and no command, where no plugin adds one."""
    code = (
        "import sys; from areal_core.plugins import discovery; discovery._entries = lambda unreadable: iter(());"
        "from areal_core.cli.main import main; code = main(sys.argv[1:]);"
        f"heavy = [m for m in {HEAVY!r} if m in sys.modules];"
        "commands = [m for m in sys.modules if m.startswith('areal_core.cli.') and m != 'areal_core.cli.main'];"
        "sys.exit(repr((heavy, commands)) if heavy or commands else code)"
    )

    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)

    assert (done.returncode, done.stderr) == (0, "")


def test_version_is_the_packages_own(areal: Run) -> None:
    """`areal --version` prints one line."""
    assert areal("--version").stdout == f"{__version__}\n"


def test_an_unknown_command_is_answered_with_the_near_one(areal: Run) -> None:
    """Bad input: exit code 2, one message, no traceback."""
    done = areal("backend", AREAL_PLUGINS="")

    assert done.returncode == 2
    assert done.stdout == ""
    first, why, fix = done.stderr.splitlines()
    assert first == "ConfigError: areal has no command 'backend' [AREAL-E200]"
    assert set(COMMANDS) | {"quickstart", "convert", "env"} <= set(why.removeprefix("  why: commands are ").split(", "))
    assert fix == "  fix: did you mean 'areal backends'?"


@pytest.mark.parametrize(("word", "distribution"), COMMANDS_OF_OTHERS.items())
def test_a_command_of_ours_that_is_not_installed_names_its_package(
    word: str, distribution: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who read of it in the documentation gets the command that brings it."""
    monkeypatch.setattr(discovery, "_entries", lambda _unreadable: iter(()))

    assert main([word]) == 1
    assert capsys.readouterr().err == (
        f"EngineMissing: areal has no command {word!r} here [AREAL-E102]\n"
        f"  why: {distribution} adds it, and is not installed\n"
        f"  fix: {pip_install(distribution)}\n"
    )


def test_our_own_commands_are_never_narrowed_away(areal: Run) -> None:
    """Whoever narrows the plugins to look for a fault still has the doctor."""
    assert areal("doctor", "--help", AREAL_PLUGINS="fsdp").returncode == 0


def test_a_command_of_ours_that_is_left_out_says_so(areal: Run) -> None:
    """What is installed and shut out needs no installation."""
    done = areal("conformance", AREAL_PLUGINS="fsdp")

    assert done.returncode == 1
    assert "why: areal-conformance adds it, but AREAL_PLUGINS leaves that out" in done.stderr


def test_the_commands_of_others_are_where_the_table_says() -> None:
    """Every command of the table is added by an installed package of ours, and none of ours is missing in it."""
    assert set(frame.plugin_commands()) == set(COMMANDS_OF_OTHERS)


def test_an_unknown_option_is_bad_input(areal: Run) -> None:
    """A misspelt option stops before anything is done."""
    done = areal("backends", "--jsn")

    assert done.returncode == 2
    assert "--jsn" in done.stderr


@pytest.mark.parametrize(
    ("raised", "code", "said"),
    [
        (BackendNotFound("no x", why="y", fix="z"), 1, "BackendNotFound: no x [AREAL-E101]\n  why: y\n  fix: z\n"),
        (ConfigError("bad"), 2, "ConfigError: bad [AREAL-E200]\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
    ],
)
def test_errors_are_printed_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], raised: BaseException, code: int, said: str
) -> None:
    """Our errors are three lines on stderr; the exit code tells bad input from the rest."""

    def fail(_words: list[str]) -> int:
        raise raised

    monkeypatch.setattr(frame, "_run", fail)

    assert main(["train"]) == code
    assert capsys.readouterr().err == said


def test_a_bug_of_ours_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that is not ours is not dressed up as one."""

    def fail(_words: list[str]) -> int:
        raise ZeroDivisionError

    monkeypatch.setattr(frame, "_run", fail)

    with pytest.raises(ZeroDivisionError):
        main([])


def test_a_command_whose_module_lacks_a_package_says_what_to_install(areal: Run, site: Path) -> None:
    """An installation without torch gets a pip command, not a traceback."""
    commands = "import areal_core.cli.main as m\nm.COMMANDS = {**m.COMMANDS, 'train': ('needs_absent:train', '')}\n"
    modules = {
        "needs_absent": "import absent_engine\n",
        "runner": commands + "import sys\nsys.exit(m.main(['train']))\n",
    }
    write_distribution(site, "needs-absent", modules=modules)

    done = subprocess.run(
        [sys.executable, "-m", "runner"], capture_output=True, text=True, env={"PYTHONPATH": str(site)}
    )

    assert done.returncode == 1
    assert done.stderr.startswith("EngineMissing: areal train needs the module 'absent_engine' [AREAL-E102]\n")
    assert pip_install("areal-core[torch]") in done.stderr


def test_a_plugin_adds_a_command(areal: Run, site: Path) -> None:
    """It is listed, runs with its own arguments, and its return value is the exit code."""
    hook_plugin(site, HOOK)

    assert "Say hello." in areal("--help").stdout
    done = areal("salute", "you")
    assert (done.returncode, done.stdout) == (7, "hello you\n")


def test_a_plugin_cannot_take_a_command_of_ours(areal: Run, site: Path) -> None:
    """`areal train`, which is the core's, and `areal backends`, which another package adds, stay what they are."""
    both = HOOK.replace(
        '[Command(name="salute"', '[Command(name="train", target="a:b", help="Say hello."), Command(name="backends"'
    )
    hook_plugin(site, both)

    assert "Say hello." not in areal("--help").stdout


@pytest.mark.parametrize("source", ["raise RuntimeError('boom')", "import sys; sys.exit(9)", "def f(:"])
def test_a_plugin_that_raises_breaks_neither_help_nor_commands(areal: Run, site: Path, source: str) -> None:
    """The command needed to find the culprit must survive the culprit."""
    hook_plugin(site, source)
    write_distribution(
        site,
        "areal-bad",
        entry_points={"areal.train": {"bad": "bad_manifest:MANIFEST"}},
        modules={"bad_manifest": source},
    )

    assert areal("--help").returncode == 0
    assert areal("backends").returncode == 0
    assert areal("--version").returncode == 0
    assert areal("salute").returncode == 2


def test_the_safe_mode_shuts_plugins_out(areal: Run, site: Path) -> None:
    """AREAL_PLUGINS set but empty leaves the core alone."""
    hook_plugin(site, HOOK)

    assert "salute" not in areal("--help", AREAL_PLUGINS="").stdout
