"""Ctrl-C, once, twice and three times, also while something blocks the event loop."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import asyncio, os, signal
from rich.console import Console
from areal_core.cli.train import interrupts

async def body():
    stop = asyncio.Event()
    with interrupts(stop, Console()):
        for _ in range(TIMES):
            os.kill(os.getpid(), signal.SIGINT)
        print("here")
        await stop.wait()
        print("winds down")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    print("restored", signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)

asyncio.run(body())
"""


@pytest.mark.parametrize(
    ("times", "said", "code"),
    [(1, ["here", "winds down", "restored True"], 0), (2, ["here"], 1), (3, [], 130)],
)
def test_each_ctrl_c_ends_more(times: int, said: list[str], code: int) -> None:
    """The first is heard by the loop, the second cancels what runs, the third asks nobody."""
    program = PROGRAM.replace("TIMES", str(times))

    done = subprocess.run([sys.executable, "-uc", program], capture_output=True, text=True, timeout=120, check=False)

    lines = [line for line in done.stdout.splitlines() if not line.startswith("stopping after")]
    assert (lines, done.returncode) == (said, code), done.stderr


IMPORTING = """
import signal, sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "areal_core.contract.errors":
            signal.raise_signal(signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests may ignore it
sys.meta_path.insert(0, Interrupting())
from areal_core.cli.main import main
sys.exit(main(["train", "run.yaml"]))
"""


def test_ctrl_c_while_the_command_is_imported_leaves_no_traceback() -> None:
    """Importing what a command needs takes a second on a busy machine, and a person may think better of it."""
    done = subprocess.run([sys.executable, "-c", IMPORTING], capture_output=True, text=True, timeout=120, check=False)

    assert (done.stderr, done.returncode) == ("interrupted\n", 130)
