"""`areal push RUN --to ORGANISATION/NAME`: a trained model on the hub.

Knows: arguments and the terminal.
Does not know: how it gets there (`push`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from areal_hub.card import Trained, card
from areal_hub.push import push


def push_command(
    run: Path,
    *,
    to: Annotated[str, Parameter(help="ORGANISATION/NAME; made if it is not there.")],
    private: Annotated[bool, Parameter(help="Only its owners see it, if it is made now.")] = False,
    revision: Annotated[str, Parameter(help="The branch.")] = "main",
    message: Annotated[str, Parameter(help="Of the commit.")] = "",
    dry_run: Annotated[bool, Parameter(help="Print the model card and stop; nothing is uploaded.")] = False,
) -> int:
    """Upload the newest model of a run to the Hugging Face hub, with a model card.

    Parameters
    ----------
    run:
        The run folder. Look at the card first: it holds the run's whole configuration, without secrets.
    """
    console = Console(highlight=False, markup=False, soft_wrap=True)
    if dry_run:
        console.print(card(Trained.of(run), to))
        return 0
    console.print(push(run, to, private=private, revision=revision, message=message))
    return 0
