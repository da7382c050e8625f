"""`tools/rounds.py`: certifications again and again, and what is told of each."""

from __future__ import annotations

import json
import runpy
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from areal_core.plugins.registry import Registry

ROUNDS = runpy.run_path(str(Path(__file__).parents[3] / "tools" / "rounds.py"))


@pytest.mark.parametrize("name", ROUNDS["REFERENCES"])
def test_what_is_certified_in_rounds_is_installed(name: str) -> None:
    """A name that is not there would end every round with a refusal."""
    words = shlex.split(ROUNDS["REFERENCES"][name])
    given = dict(zip(words[::2], words[1::2], strict=True))
    wanted = [(given["--role"], given["--backend"])] if "--backend" in given else [("train", "reference")]

    for role, backend in wanted:
        assert backend in {listing.name for listing in Registry().listings(role)}


def test_a_round_tells_what_did_not_pass_in_its_own_words(tmp_path: Path) -> None:
    """The verdict alone does not say which check gave a false alarm."""
    rows: list[dict[str, Any]] = [
        {"id": f"a.{outcome}", "outcome": outcome, "seconds": 1.0, "message": f"why {outcome}"}
        for outcome in ("pass", "skip", "not-run", "inconclusive", "fail")
    ]
    (tmp_path / "report.json").write_text(json.dumps({"verdict": "failure", "checks": rows}))
    ended = subprocess.CompletedProcess([], 1, "", "")

    told = ROUNDS["_found"](tmp_path, ended)

    assert told.splitlines() == [
        "failure",
        "  inconclusive a.inconclusive 1.0 s: why inconclusive",
        "  fail a.fail 1.0 s: why fail",
    ]
