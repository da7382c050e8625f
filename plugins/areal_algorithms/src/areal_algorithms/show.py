"""`areal algorithms [NAME]`: the presets in the terminal.

Knows: what a preset says of itself.
Does not know: what its settings do.
"""

from __future__ import annotations

import json as encoding
from typing import Annotated

import attrs
import yaml
from cyclopts import Parameter
from rich.console import Console
from rich.table import Table

from areal_algorithms.presets import Preset, preset, presets

PAPER = "https://arxiv.org/abs/"


def algorithms(
    name: str | None = None, *, json: Annotated[bool, Parameter(negative=(), help="Print JSON.")] = False
) -> int:
    """List published algorithms, or show what one of them sets.

    Parameters
    ----------
    name:
        One of the list: its formula, its paper, the keys it sets, the roles it needs.
    """
    console = Console(highlight=False, markup=False)
    chosen = presets() if name is None else (preset(name),)
    if json:
        console.print(encoding.dumps([attrs.asdict(each) for each in chosen], indent=2), soft_wrap=True)
    elif name is None:
        console.print(_table(chosen))
        console.print("algorithm: {preset: NAME} in a run's yaml, or algorithm.preset=NAME; areal algorithms NAME")
    else:
        console.print(described(chosen[0]), soft_wrap=True)
    return 0


def _table(chosen: tuple[Preset, ...]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("name", no_wrap=True)
    table.add_column("what")
    table.add_column("arXiv", no_wrap=True)
    for each in chosen:
        needs = f" (needs {', '.join(each.needs)})" if each.needs else ""
        table.add_row(each.name, each.summary + needs, each.arxiv)
    return table


def described(each: Preset) -> str:
    """Return everything about one preset as text."""
    parts = [f"{each.name}: {each.summary}", f"{each.paper}\n{PAPER}{each.arxiv}", each.formula.strip()]
    parts += [f"needs: {', '.join(each.needs)}"] if each.needs else []
    parts += [f"- {note}" for note in each.notes]
    parts.append(f"sets:\n\n{indented(each)}")
    parts.append(f"use: algorithm: {{preset: {each.name}}}; each key can be set beside it, or by algorithm.KEY=VALUE")
    return "\n\n".join(parts)


def indented(each: Preset) -> str:
    """Return the keys of a preset as yaml, indented."""
    text = yaml.safe_dump(dict(each.keys), sort_keys=False, default_flow_style=False, width=100)
    return "\n".join(f"    {line}" for line in text.splitlines())
