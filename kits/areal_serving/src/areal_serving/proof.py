"""Read a staged folder and fingerprint every tensor in it, in a thread of its own: generation goes on meanwhile.

For the code a plugin puts inside its engine's processes; `agreement` is what asks them.

Knows: safetensors files, fingerprints.
Does not know: engines, versions, or who compares.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import Tensor

from areal_serving.weights import fingerprint

_ARRIVAL_S = 600.0
"""A folder named without a place, which every host of a replica makes for itself, may be so much later than another's.
The update it is of has a deadline of its own."""
_LOOK_S = 0.02


def read_tensors(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """Yield every tensor of a model folder by name, as views of the mapped files where the system allows it."""
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - not a dict
                yield name, opened.get_tensor(name)


class Proof:
    """Fingerprints of one folder, in the making from construction on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._found: dict[str, str] = {}
        self._problem = ""
        self._thread = threading.Thread(target=self._read, name="areal-proof", daemon=True)
        self._thread.start()

    @property
    def done(self) -> bool:
        """Return whether it came to its end."""
        return not self._thread.is_alive()

    def join(self) -> None:
        """Wait for its end."""
        self._thread.join()

    def state(self) -> dict[str, Any]:
        """Return {"done": bool, "fingerprints": name -> digest, "problem": text}. Any: JSON."""
        if not self.done:
            return {"done": False}
        return {"done": True, "fingerprints": self._found, "problem": self._problem}

    def _read(self) -> None:
        until = time.monotonic() + (0.0 if self.folder.is_absolute() else _ARRIVAL_S)
        while not self.folder.exists() and time.monotonic() < until:
            time.sleep(_LOOK_S)
        try:
            for name, tensor in read_tensors(self.folder):
                self._found[name] = fingerprint(tensor)
        except Exception as error:  # the thread's only witness is `state`
            self._problem = f"{type(error).__name__}: {error}"
