"""Hooks: for plugins that want to add something, where `Registry` is for those that play a role.

A plugin names a module in the entry-point group `areal.hooks` and marks functions in it:

    from areal_core.plugins.hooks import Command, hookimpl

    @hookimpl
    def areal_cli_commands():
        return [Command(name="profile", target="areal_profile.cli:profile", help="Profile a run.")]

Knows: the hooks there are, and how to load plugins one by one so that a broken one breaks nothing else.
Does not know: what the callers do with the answers. No hook is called per token or per step of an engine.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import pluggy
from attrs import frozen

from areal_core.plugins.describe import reason, resolve
from areal_core.plugins.discovery import Entry
from areal_core.plugins.findings import Finding, Report

PROJECT = "areal"
hookimpl = pluggy.HookimplMarker(PROJECT)
hookspec = pluggy.HookspecMarker(PROJECT)


@frozen(kw_only=True)
class Command:
    """A command added to `areal`. `target` is `module:function`, imported only when the command runs."""

    name: str
    target: str
    help: str


@runtime_checkable
class MetricSink(Protocol):
    """Takes the metrics of every optimizer step, in the controller. An exception it raises disables it, not the run."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Take one step's values by metric name. Called in order of steps; must not block for long."""

    def close(self) -> None:
        """Flush and let go, also after an error. Idempotent."""


class Specification:
    """The hooks of areal. An implementation may leave out arguments it does not need."""

    @hookspec
    def areal_doctor_findings(self, report: Report) -> list[Finding]:  # type: ignore[empty-body]
        """Add findings to `areal doctor`.

        Called once by `areal doctor`, in its process, after its own checks, whose findings are in `report`.
        """

    @hookspec
    def areal_cli_commands(self) -> list[Command]:  # type: ignore[empty-body]
        """Add commands to `areal`.

        Called by `areal --help` and when a command is typed that the core does not have; never for the core's own
        commands. The module is imported for a help text: it must import nothing heavy.
        """

    @hookspec
    def areal_metric_sinks(self, run_folder: Path, config: Mapping[str, object]) -> list[MetricSink]:  # type: ignore[empty-body]
        """Add sinks for the metrics of a run.

        Called once by the train loop, in the controller process, before the first step. `config` is the resolved
        configuration as plain data, secrets redacted.
        """

    @hookspec
    def areal_report_lines(self, summary: Mapping[str, object]) -> list[str]:  # type: ignore[empty-body]
        """Add lines of plain text to a run's report.

        Called once by the train loop, in the controller process, after the last step; `summary` is what
        summary.json will hold.
        """

    @hookspec
    def areal_checkpoint_formats(self) -> list[object]:  # type: ignore[empty-body]
        """Add formats to `areal convert`: objects of the protocol `areal_torch.conversion.format.Format`.

        Called by `areal convert` alone, in its process. Importing the module must import nothing heavy.
        """


@frozen(kw_only=True)
class HookFailure:
    """A hook plugin that could not be loaded, or raised when called; shown by `areal doctor`."""

    name: str
    origin: str
    why: str


class Hooks:
    """The hook plugins of this process, each loaded on its own."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        """Import every plugin and remember what failed. Nothing of a plugin is raised."""
        self._manager = pluggy.PluginManager(PROJECT)
        self._manager.add_hookspecs(Specification)
        self._entries: dict[str, Entry] = {}
        self.failures: list[HookFailure] = []
        for entry in entries:
            self._register(entry)

    def collect(self, hook: str, **arguments: object) -> list[Any]:  # Any: what the hook returns
        """Call one hook of every plugin and return all answers in one list; a plugin that raises is remembered."""
        answers: list[Any] = []
        for key, entry in self._entries.items():
            others = [plugin for name, plugin in self._manager.list_name_plugin() if name != key]
            caller = self._manager.subset_hook_caller(hook, remove_plugins=others)
            try:
                for answer in caller(**arguments):
                    answers.extend(_listed(answer, hook))
            except (Exception, SystemExit) as exc:
                self._fail(entry, exc)
        return answers

    def _register(self, entry: Entry) -> None:
        key = f"{entry.distribution}:{entry.name}"
        try:
            plugin = resolve(entry.value) if ":" in entry.value else importlib.import_module(entry.value)
            self._manager.register(plugin, name=key)
            self._entries[key] = entry
            self._manager.check_pending()  # here and not at the end: the misspelt hook is this plugin's
        except (Exception, SystemExit) as exc:
            self._entries.pop(key, None)
            if self._manager.has_plugin(key):
                self._manager.unregister(name=key)
            self._fail(entry, exc)

    def _fail(self, entry: Entry, exc: BaseException) -> None:
        self.failures.append(HookFailure(name=entry.name, origin=entry.origin, why=reason(exc)))


def _listed(answer: object, hook: str) -> Sequence[object]:
    if not isinstance(answer, (list, tuple)):
        raise TypeError(f"{hook} returned {type(answer).__name__}, not a list")
    return answer
