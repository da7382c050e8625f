"""Trainers of several ranks that cannot read a state on one rank, and do not tell the others in time or at all.

Knows: what the second trainer's ranks read.
Does not know: the checks beyond their names.
"""

from __future__ import annotations

import json
from pathlib import Path

from safetensors import SafetensorError, safe_open

from areal_core.contract.errors import CheckpointError
from areal_proof.mutants.rows import Original, breaking
from areal_proof.mutants.train_ranks import Sharing

breaks = breaking("train/second", Sharing, ranks=2)

_KILLERS = ("train.ranks.state.each_file",)


@breaks("load_state", *_KILLERS)
def ReadsOwnFileAlone(original: Original, self: Sharing, path: Path) -> None:
    """Raises alone on the rank whose own part is torn, before the ranks agree; the others wait for it."""
    own = path / f"part-{self._running().ranks.rank}.safetensors"
    if self.several and own.exists():
        try:
            with safe_open(own, framework="pt"):
                pass
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{own} is torn", why=str(error), fix="load another state") from error
    original()


@breaks("load_state", *_KILLERS)
def RaisesParserErrors(original: Original, self: Sharing, path: Path) -> None:
    """Raises something of its own, and on one rank only, where a proof cannot be read as json."""
    proof = path / f"proof-{self._running().ranks.rank}.json"
    if self.several and proof.exists():
        json.loads(proof.read_bytes())
    original()


@breaks("load_state", *_KILLERS)
def RefusedVersionKept(original: Original, self: Sharing, path: Path) -> None:
    """Takes the version of a state whose parts then turn out to be torn."""
    try:
        original()
    except CheckpointError:
        index = path / "index.json"
        if self.several and index.exists() and index.read_bytes()[:1] == b"{":
            text = index.read_text()
            self.version = int(text.partition('"version": ')[2].partition(",")[0] or self.version)
        raise
