"""Whoever stands in for a device says so where everybody can ask."""

from __future__ import annotations

from pathlib import Path

import pytest

from areal_core.plugins.stand_ins import stand_ins


def test_a_device_is_the_real_one_unless_somebody_says_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What makes a process believe in a device carries the sentence; it is of that device alone."""
    made = tmp_path / "fake_npu-0.dist-info"
    made.mkdir()
    (made / "METADATA").write_text("Metadata-Version: 2.1\nName: fake-npu\nVersion: 0\n")
    (made / "entry_points.txt").write_text("[areal.stand_ins]\nnpu = a_fake_npu:SAID\n")
    (tmp_path / "a_fake_npu.py").write_text("SAID = 'Nothing is computed.'\n")

    before = stand_ins("npu")
    monkeypatch.syspath_prepend(tmp_path)

    assert (before, stand_ins("npu"), stand_ins("cuda")) == ("", "Nothing is computed.", "")
