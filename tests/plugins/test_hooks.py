"""Hook plugins: loaded one by one, and a broken one is remembered instead of raised."""

from __future__ import annotations

from pathlib import Path

from areal_conformance.probes.distributions import write_distribution
from areal_core.plugins.catalogue import OWN
from areal_core.plugins.discovery import discover
from areal_core.plugins.hooks import Command, Hooks

HEAD = "from areal_core.plugins.hooks import Command, hookimpl\n@hookimpl\n"
GOOD = HEAD + "def areal_cli_commands():\n    return [Command(name='{0}', target='a:b', help='h')]\n"


def hooks(site: Path, **sources: str) -> Hooks:
    """Install one distribution per source, and load those only."""
    for name, source in sources.items():
        module = f"hook_{name}"
        entry_points = {"areal.hooks": {name: module}}
        write_distribution(site, f"areal-{name}", entry_points=entry_points, modules={module: source})
    entries = discover({}).hooks
    return Hooks(sorted((e for e in entries if e.name in sources), key=lambda e: e.name))


def names(commands: list[object]) -> set[str]:
    """Return the names of commands."""
    return {command.name for command in commands if isinstance(command, Command)}


def test_every_plugin_is_asked(site: Path) -> None:
    """The answers of all plugins come in one list."""
    loaded = hooks(site, one=GOOD.format("one"), two=GOOD.format("two"))

    assert {"one", "two"} == names(loaded.collect("areal_cli_commands"))
    assert loaded.failures == []


def test_a_plugin_that_raises_at_import_is_remembered(site: Path) -> None:
    """The others are loaded; pluggy's own loader would have stopped at the first."""
    loaded = hooks(site, a_bad="raise RuntimeError('boom')", good=GOOD.format("good"))

    assert {"good"} == names(loaded.collect("areal_cli_commands"))
    assert [("a_bad", "areal-a_bad".replace("_", "-") + " 1.0")] == [(f.name, f.origin) for f in loaded.failures]
    assert loaded.failures[0].why.startswith("RuntimeError: boom (")


def test_a_plugin_that_raises_when_called_is_remembered(site: Path) -> None:
    """The answers of the others are kept."""
    bad = HEAD + "def areal_cli_commands():\n    raise OSError('late')\n"
    loaded = hooks(site, a=bad, b=GOOD.format("b"))

    assert {"b"} == names(loaded.collect("areal_cli_commands"))
    assert loaded.failures[0].why.startswith("OSError: late (")


def test_a_misspelt_hook_is_an_error_of_its_plugin(site: Path) -> None:
    """A hook that nobody would ever call is not silence."""
    bad = HEAD + "def areal_cli_comands():\n    return []\n"
    loaded = hooks(site, a=bad, b=GOOD.format("b"))

    assert {"b"} == names(loaded.collect("areal_cli_commands"))
    assert [failure.name for failure in loaded.failures] == ["a"]
    assert "areal_cli_comands" in loaded.failures[0].why


def test_a_hook_with_an_argument_nobody_gives_is_refused(site: Path) -> None:
    """Signatures are checked when the plugin is loaded, not in the middle of a run."""
    bad = HEAD + "def areal_report_lines(sumary):\n    return []\n"

    assert [failure.name for failure in hooks(site, a=bad).failures] == ["a"]


def test_an_answer_that_is_no_list_is_remembered(site: Path) -> None:
    """A generator or a single value would be misread; it is refused by name."""
    bad = HEAD + "def areal_report_lines(summary):\n    return 'text'\n"
    loaded = hooks(site, a=bad)

    assert loaded.collect("areal_report_lines", summary={}) == []
    assert "areal_report_lines returned str, not a list" in loaded.failures[0].why


def test_narrowing_leaves_hook_plugins_out_too(site: Path) -> None:
    """AREAL_PLUGINS set but empty is the safe mode of the command line: only our own commands are left."""
    hooks(site, one=GOOD.format("one"))

    found = discover({"AREAL_PLUGINS": ""}).hooks
    assert {entry.distribution for entry in found} <= OWN
    assert "one" in {entry.name for entry in discover({}).hooks} - {entry.name for entry in found}
