"""`areal episodes RUN`: read prompts, answers and rewards of a run in the terminal.

Knows: arguments, and how an episode looks as text.
Does not know: SQL (`reader`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console
from rich.text import Text

from areal_core.plugins.episodes import Fate
from areal_episodes.reader import Filter, Order, Reader


def episodes(
    run_folder: Path,
    *,
    step: Annotated[int | None, Parameter(help="Only those trained in this step.")] = None,
    task: Annotated[str | None, Parameter(help="Only those of this task, for example train/0/12.")] = None,
    fate: Annotated[Fate | None, Parameter(help="Only those this became of.")] = None,
    kind: Annotated[str | None, Parameter(help="train or eval.")] = None,
    search: Annotated[str | None, Parameter(help="Only those with this text.")] = None,
    order: Annotated[Order, Parameter(help="Which come first.")] = Order.NEWEST,
    limit: Annotated[int, Parameter(help="How many to show.")] = 5,
    as_json: Annotated[bool, Parameter(name="--json", help="One JSON object per line.")] = False,
) -> int:
    """Show episodes of a run, also while it goes on.

    Parameters
    ----------
    run_folder:
        The folder the run writes into.
    """
    console = Console(highlight=False)
    chosen = Filter(step=step, task=task, fate=None if fate is None else str(fate), kind=kind, text=search)
    with Reader(run_folder) as reader:
        total = reader.count(chosen)
        for facts in reader.facts(chosen, order=order, limit=limit):
            row, turns = reader.content(facts["id"])
            if as_json:
                sys.stdout.write(json.dumps({**facts, "row": row, "trajectories": turns}) + "\n")
            else:
                _show(console, facts, turns)
        if not as_json:
            console.print(f"{min(limit, total)} of {total} episodes, {order.value} first", style="dim")
    return 0


def _show(console: Console, facts: Mapping[str, Any], trajectories: list[list[dict[str, str]]]) -> None:
    """Print one episode. Any: as `Reader.facts` gives it."""
    reward = "no reward" if facts["reward"] is None else f"reward {facts['reward']:.4g}"
    parts = " ".join(f"{name}={value:.4g}" for name, value in facts["parts"].items())
    became = facts["fate"] + (f" in step {facts['step']}" if facts["step"] is not None else "")
    versions = f"versions {facts['oldest_version']} to {facts['newest_version']}"
    head = [f"{facts['task_id']} #{facts['member']}", reward, became, f"{facts['output_tokens']} tokens", versions]
    console.rule(Text("  ".join([*head, f"stop: {facts['stop']}", *([parts] if parts else [])])), align="left")
    for turns in trajectories:
        for turn in turns:
            style = "bold" if turn["role"] == "generated" else "dim"
            console.print(Text(_printable(turn["text"]), style=style), soft_wrap=True)
    if facts["error"]:
        console.print(Text(_printable(facts["error"]), style="red"), soft_wrap=True)


def _printable(text: str) -> str:
    """Return a text that a terminal shows and does not obey."""
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)
