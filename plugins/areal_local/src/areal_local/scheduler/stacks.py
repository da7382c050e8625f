"""The signal that has a worker write where all its threads stand.

Knows: the signal. Does not know: who sends it, or why.
"""

from __future__ import annotations

import faulthandler
import signal
import sys

STACKS = signal.SIGUSR2
"""Has a worker write the stacks of all its threads into its log."""


def write_stacks_when_asked() -> None:
    """Let this process write its stacks to its standard error whenever it is sent `STACKS`, whatever it does."""
    faulthandler.register(STACKS, file=sys.stderr, all_threads=True, chain=False)
