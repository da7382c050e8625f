"""`areal scale DIR N`: change how many replicas a live run generates with.

Knows: arguments, what to print, when to stop waiting.
Does not know: how a run takes a request (`requests`) or how its fleet changes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from areal_core.loop.run_folder import RunFolder
from areal_local.scale.requests import Answer, Asking, State


def scale(
    run_folder: Path,
    replicas: int,
    *,
    wait: Annotated[bool, Parameter(help="Wait until the change is complete.")] = False,
    timeout_s: Annotated[float, Parameter(help="Seconds to wait for an answer.")] = 1800.0,
) -> int:
    """Change the number of inference replicas of a run that goes on.

    Parameters
    ----------
    run_folder:
        The folder the run writes into.
    replicas:
        Number of replicas to run, 1 or more.
    """
    console = Console()
    asking = Asking(RunFolder(run_folder), replicas)
    try:
        answer = _shown(console, asking.answer(after=None, within_s=timeout_s))
        if wait and answer.state is State.ACCEPTED:
            answer = _shown(console, asking.answer(after=State.ACCEPTED, within_s=timeout_s))
    finally:
        asking.forget()
    return 1 if answer.state is State.SUPERSEDED else 0


def _shown(console: Console, answer: Answer) -> Answer:
    """Print an answer; raise the error it carries."""
    if answer.error is not None:
        raise answer.error
    text = {
        State.ACCEPTED: f"accepted; {answer.replicas} serving, the others join at the next weight update or leave",
        State.DONE: f"done; {answer.replicas} serving",
        State.SUPERSEDED: "a later request replaced this one",
    }[answer.state]
    console.print(text, highlight=False, markup=False, soft_wrap=True)
    return answer
