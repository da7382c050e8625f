"""Trainers of several ranks that cannot read a state on one rank, and do not tell the others in time or at all.

Knows: what the second trainer's ranks read.
Does not know: the checks beyond their names.
"""

from __future__ import annotations

import json
from pathlib import Path

from safetensors import SafetensorError, safe_open

from areal_core.contract.errors import CheckpointError
from areal_proof.mutants import mutant
from areal_proof.mutants.train_ranks import Sharing

_KILLERS = ("train.ranks.state.each_file",)


@mutant("train/second", killers=_KILLERS, ranks=2)
class ReadsOwnFileAlone(Sharing):
    """Raises alone on the rank whose own part is torn, before the ranks agree; the others wait for it."""

    def load_state(self, path: Path) -> None:
        """Open this rank's part first."""
        own = path / f"part-{self._running().ranks.rank}.safetensors"
        if self.several and own.exists():
            try:
                with safe_open(own, framework="pt"):
                    pass
            except (OSError, SafetensorError) as error:
                raise CheckpointError(f"{own} is torn", why=str(error), fix="load another state") from error
        super().load_state(path)


@mutant("train/second", killers=_KILLERS, ranks=2)
class RaisesParserErrors(Sharing):
    """Raises something of its own, and on one rank only, where a proof cannot be read as json."""

    def load_state(self, path: Path) -> None:
        """Read this rank's proof first."""
        proof = path / f"proof-{self._running().ranks.rank}.json"
        if self.several and proof.exists():
            json.loads(proof.read_bytes())
        super().load_state(path)


@mutant("train/second", killers=_KILLERS, ranks=2)
class RefusedVersionKept(Sharing):
    """Takes the version of a state whose parts then turn out to be torn."""

    def load_state(self, path: Path) -> None:
        """Take the version first."""
        try:
            super().load_state(path)
        except CheckpointError:
            index = path / "index.json"
            if self.several and index.exists() and index.read_bytes()[:1] == b"{":
                text = index.read_text()
                self.version = int(text.partition('"version": ')[2].partition(",")[0] or self.version)
            raise
