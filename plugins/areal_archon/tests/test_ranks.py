"""The Archon engine on one, two and four real ranks, against a bare PyTorch loop over unpacked sequences."""

from __future__ import annotations

from pathlib import Path

import pytest

from areal_torch.testing.axes.claims import WORLDS, HeldToAPlainLoop, cases

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]  # two and four real ranks, many layouts in one start


class TestArchon(HeldToAPlainLoop):
    """Zero-bubble schedules, selective checkpoints and compiled layers among the cases."""

    script = Path(__file__).with_name("ranks.py")
    refusals = {  # noqa: RUF012
        "ranks": ("LayoutError", "2 ranks for a layout of 4"),
        "heads": ("LayoutError", "t2 does not divide 3 key and value heads"),
        "context_heads": ("LayoutError", "c2 does not divide 3 attention heads"),
        "layers": ("LayoutError", "p2 does not divide 3 layers"),
        "experts": ("LayoutError", "e2 is for models with experts"),
        "too_many_experts": ("LayoutError", "e4 does not divide 2 data and context ranks"),
        "odd_experts": ("LayoutError", "e2 does not divide 3 experts"),
        "stages": ("LayoutError", "1F1B was given 2 stages"),
        "resharding": ("CapabilityError", "cannot be combined with InterleavedZeroBubble"),
        "selected_e": ("CapabilityError", "selective cannot be combined with e"),
        "compiled_t": ("CapabilityError", "compile does not work with t"),
        "tied_v": ("LayoutError", "first and the last stage on one rank"),
        "fp8": ("CapabilityError", "no 8-bit matrix products on cpu"),
        "fp8_experts": ("CapabilityError", "with experts"),
        "fp8_halves": ("CapabilityError", "fp8 cannot be combined with InterleavedZeroBubble"),
        "family": ("ModelError", "no model of type 'granite'"),
        "missing_shard": ("ModelError", "missing: model.layers.1."),
        "other_weights": ("ModelError", "has the shape [66, 64]"),
    }

    def test_cases_cut_what_they_say_they_cut(self, folder: Path) -> None:
        """Several micro-batches where several are wanted."""
        counts = {n: case["steps"][0]["microbatches"] for world in WORLDS for n, case in cases(folder, world).items()}

        assert counts["qwen3/d2"] == 1
        assert counts["once_a_step"] == 2
        assert counts["zero_bubble"] == 4
