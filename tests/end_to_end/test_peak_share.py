"""A run says which share of its devices' peak its optimizer steps reach, where the peak is known."""

from __future__ import annotations

from pathlib import Path

import pytest

from areal_core.observe.jsonl import read_lines
from areal_episodes.replay import replay

from .one_process import settle_here, train_here

pytest.importorskip("areal_reference")

from areal_torch import flops


@pytest.mark.slow
def test_the_share_of_peak_is_in_the_metrics_where_the_device_has_one(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of every step, far below 1: this CPU goes by the name of a GPU. Under its own name it has none.

    A replay takes other seconds and is the same run all the same.
    """
    settle_here(monkeypatch)
    train_here(tmp_path / "cpu", model, "steps=1", "actor.dtype=bfloat16")
    monkeypatch.setattr(flops, "_name", lambda device: "NVIDIA H200")
    train_here(tmp_path / "gpu", model, "steps=2", "actor.dtype=bfloat16")

    unknown, known = (list(read_lines(tmp_path / name / "metrics.jsonl")) for name in ("cpu", "gpu"))
    assert "train/peak_share" not in unknown[0]
    assert len(known) == 2 and all(0 < record["train/peak_share"] < 0.01 for record in known)
    again = replay(tmp_path / "gpu")
    shares = [record["train/peak_share"] for record in read_lines(again.folder / "metrics.jsonl")]
    assert (again.compared, again.divergence, len(shares)) == (2, None, 2)
