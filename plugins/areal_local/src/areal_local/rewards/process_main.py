"""The main program of a reward process: `python -m areal_local.rewards.process_main CHANNEL PARENT`.

Knows: messages on the channel it was born with, and whose end it does not outlive.
Does not know: what the function computes (`child`), or who waits for how long.
"""

from __future__ import annotations

import os
import sys
from typing import BinaryIO

from areal_local.rewards import child, messages
from areal_worker import watchdog


def main(channel: int, parent: int) -> None:
    """Answer one message after the other: first the target, then lists of completions. Ends with the channel."""
    watchdog.die_with_parent(parent)
    watchdog.post(sys.stdin.fileno())  # ends the whole group, with what a reward function started
    os.set_inheritable(channel, False)
    with os.fdopen(channel, "rb", closefd=False) as asked, os.fdopen(channel, "wb") as answers:
        name, options, imports = messages.decode(_read(asked))
        resolved = child.resolve(child.RewardTarget(name=name, options=options, imports=imports))
        scorer = resolved.scorer
        _write(answers, (resolved.error, *((scorer.batching.size, scorer.batching.wait_s) if scorer else (1, 0.0))))
        while (data := _read(asked)) and scorer is not None:
            _write(answers, scorer(messages.decode_completions(data)))


def _read(asked: BinaryIO) -> bytes:
    """Return the next message, empty at the end."""
    header = asked.read(messages.LENGTH.size)
    return asked.read(messages.LENGTH.unpack(header)[0]) if len(header) == messages.LENGTH.size else b""


def _write(answers: BinaryIO, answer: object) -> None:
    data = messages.encode(answer)
    answers.write(messages.LENGTH.pack(len(data)) + data)
    answers.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
