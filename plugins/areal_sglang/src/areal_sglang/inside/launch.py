"""Start the server: `python -m areal_sglang.inside.launch ARGUMENTS`, the key in the environment.

SGLang takes a key only as an argument, which every user of the machine can read, and writes its arguments to
its log. Here it comes from the environment, and its letters are taken out of what is logged.

Knows: how SGLang starts itself.
Does not know: what the arguments mean.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys
from pathlib import Path

import sglang.srt.models
from sglang.srt.plugins import load_plugins
from sglang.srt.server_args import prepare_server_args
from sglang.srt.utils import kill_process_tree

from areal_sglang.inside import models

KEY_VARIABLE = "AREAL_SGLANG_KEY"
FORK_VARIABLE = "AREAL_SGLANG_FORK"


def main() -> None:
    """Serve until told to end."""
    key = os.environ.pop(KEY_VARIABLE, "")
    if key:
        _hide(key)
    if os.environ.get(FORK_VARIABLE):
        _fork()
    model, folder = sys.argv[sys.argv.index("--model-path") + 1], Path(sglang.srt.models.__path__[0])
    os.environ.setdefault(models.VARIABLE, models.others(model, folder))
    load_plugins()
    arguments = prepare_server_args(sys.argv[1:])
    arguments.api_key = key or None
    from sglang.launch_server import run_server

    try:
        run_server(arguments)
    finally:
        kill_process_tree(os.getpid(), include_parent=False)


def _fork() -> None:
    """Let the server's processes share what is imported: each spends 20 s of a core on it otherwise.

    Only where no accelerator is: its runtime does not survive a fork.
    """
    multiprocessing.set_start_method("fork")
    multiprocessing.set_start_method = lambda *_, **__: None


def _hide(key: str) -> None:
    make = logging.getLogRecordFactory()

    def without_key(*args: object, **kwargs: object) -> logging.LogRecord:
        record = make(*args, **kwargs)
        if key in record.getMessage():
            record.msg, record.args = record.getMessage().replace(key, "***"), ()
        return record

    logging.setLogRecordFactory(without_key)


if __name__ == "__main__":
    main()
