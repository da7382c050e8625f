"""`areal backends`: what is installed, what it can do, and whether it would run here.

Knows: tables and their JSON.
Does not know: how plugins are found or judged (`areal_core.plugins`), what options mean (`areal_config`).
"""

from __future__ import annotations

import json as jsonlib
from collections.abc import Sequence
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from areal_config.find import class_keys
from areal_config.show import show_options
from areal_core.contract.errors import ArealError, ContractMismatch, DuplicateName, ManifestError
from areal_core.plugins.claims import Claim, Support
from areal_core.plugins.discovery import Discovery
from areal_core.plugins.registry import Registry, default_registry
from areal_local.inventory import Row, inventory, nothing_named, plain

_ANSWERS = {Support.FULL: "yes", Support.WHEN: "when", Support.NOT_YET: "not yet", Support.UNSUPPORTED: "no"}
_FAULTS = {DuplicateName: "registered twice", ContractMismatch: "contract mismatch", ManifestError: "bad manifest"}
_STYLES = {Support.FULL: "green", Support.WHEN: "yellow", Support.NOT_YET: "yellow", Support.UNSUPPORTED: "red"}


def backends(
    name: str | None = None, *, role: str | None = None, json: Annotated[bool, Parameter(negative=())] = False
) -> int:
    """List what is installed: backends, schedulers, transports, workflows, objectives, data sets, rewards, devices, ...

    Args:
        name: Show every ability of this one, with the reasons, and its options.
        role: Only this role: train, infer, scheduler, ...
        json: Print JSON instead of tables.
    """
    show(default_registry(), Console(), name=name, role=role, json=json)
    return 0


def show(registry: Registry, console: Console, *, name: str | None, role: str | None, json: bool) -> None:
    """Print the inventory of a registry.

    Raises:
        BackendNotFound: nothing has the name.
        PluginError: there is no such role.
    """
    rows = inventory(registry, role, name)
    if name is not None and not rows:
        raise nothing_named(registry, name, role)
    if json:
        console.file.write(jsonlib.dumps([plain(row) for row in rows], indent=2) + "\n")
    elif name is None:
        console.print(_table(rows))
        _footnotes(rows, registry.discovery, console)
    else:
        for row in rows:
            _details(row, console)
            _options(row, registry, console)


def _table(rows: Sequence[Row]) -> Table:
    """Return a table that fits 80 columns: names under their role; `areal backends NAME` has versions and reasons."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    for column in ("name", "package", "devices", "claims", "here"):
        table.add_column(
            column, no_wrap=column != "package", overflow="fold", max_width=12 if column == "devices" else None
        )
    for number, row in enumerate(rows):
        if not number or rows[number - 1].role != row.role:
            table.add_row(f"[bold]{row.role}[/]")
        devices = " ".join(row.manifest.devices) if row.manifest else "?"
        package = row.origin.partition(" ")[0] if row.error is None else row.origin
        table.add_row(f"  {escape(row.name)}", escape(package), devices, _claims(row), _state(row))
    return table


def _claims(row: Row) -> str:
    """Return how many of the abilities it speaks of it claims; `areal backends NAME` shows which."""
    if row.manifest is None:
        return "?"
    answers = row.manifest.claims.values()
    return f"{sum(claim.claimed for claim in answers)} of {len(answers)}" if answers else "-"


def _state(row: Row) -> str:
    if row.error is not None:
        return f"[red]{_FAULTS.get(type(row.error), 'broken')}[/]"
    assert row.probe is not None
    if row.probe.ok:
        return "[green]ok[/]"
    absent = row.probe.missing or (row.probe.devices and row.probe.no_environment)
    return "[yellow]no engine[/]" if absent else "[yellow]no device[/]"


def _footnotes(rows: Sequence[Row], discovery: Discovery, console: Console) -> None:
    """Print what is wrong and the fixes below the table, where there is room for them."""
    lines = []
    for row in rows:
        if row.error is not None:
            console.print(f"\n{type(row.error).__name__}: {row.error}", markup=False, highlight=False, soft_wrap=True)
        elif row.probe is not None and not row.probe.ok and row.role != "device":  # a machine has one kind or none
            lines += [
                f"{row.role} {row.name}: {row.probe.summary}",
                *([f"    {row.probe.fix}"] if row.probe.fix else []),
            ]
    if lines:
        console.print("\n" + "\n".join(lines), markup=False, highlight=False, soft_wrap=True)
    if discovery.hidden:
        hidden = ", ".join(sorted({entry.name for entry in discovery.hidden}))
        console.print(f"\nleft out by AREAL_PLUGINS: {hidden}", markup=False, highlight=False, soft_wrap=True)


def _details(row: Row, console: Console) -> None:
    console.print(f"[bold]{row.role} {escape(row.name)}[/]  {escape(row.origin)}", soft_wrap=True)
    if row.error is not None:
        console.print(f"{type(row.error).__name__}: {row.error}", markup=False, highlight=False, soft_wrap=True)
    if row.manifest is None:
        console.print()
        return
    if row.manifest.summary:
        console.print(escape(row.manifest.summary), soft_wrap=True)
    console.print(f"contract {'.'.join(map(str, row.manifest.contract))}, devices {' '.join(row.manifest.devices)}")
    if row.probe is not None:
        found = ", ".join(f"{name} {version}" for name, version in row.probe.versions.items())
        console.print(f"here: {escape(row.probe.summary)}" + (f"  ({escape(found)})" if found else ""), soft_wrap=True)
        for device, python in row.probe.environments.items():
            console.print(f"on {device}: {escape(str(python))}", soft_wrap=True)
        for warning in row.probe.warnings:
            console.print(escape(warning), soft_wrap=True)
        if row.probe.fix:
            console.print(escape(row.probe.fix), soft_wrap=True)
    if row.manifest.claims:
        console.print(_claim_table(row))
    console.print()


def _options(row: Row, registry: Registry, console: Console) -> None:
    """Print the keys that may stand under the plugin's `options`."""
    if row.manifest is None:
        return
    try:
        known = class_keys(registry.config_class(row.role, row.name))
    except ArealError as exc:  # the class may need what is not installed
        console.print(f"options: {exc}\n", markup=False, highlight=False, soft_wrap=True)
        return
    if known:
        show_options("options", known, console)
        console.print()


def _claim_table(row: Row) -> Table:
    assert row.manifest is not None
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("ability", "claimed", "why"):
        table.add_column(column, no_wrap=column != "why")
    for key, claim in sorted(row.manifest.claims.items()):
        table.add_row(escape(key), f"[{_STYLES[claim.support]}]{_ANSWERS[claim.support]}[/]", escape(_why(claim)))
    return table


def _why(claim: Claim) -> str:
    parts = (claim.condition, claim.why, claim.issue)
    return ": ".join(part for part in parts if part)
