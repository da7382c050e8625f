"""The answers a CPU rank gives in place of torch.cuda: there alone, and for the time of a call."""

from __future__ import annotations

import pytest
import torch

from areal_megatron import layers
from areal_megatron.engine import MegatronEngine
from areal_megatron.testing.host import answering

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="torch.cuda answers for itself here")


def test_answers_are_the_cpus_and_end_with_the_call() -> None:
    """What is made on cuda by name lies on the CPU within, and torch is as it was afterwards, also after an error."""
    before = torch.cuda.current_device
    with pytest.raises(KeyError), answering():
        assert torch.cuda.current_device() == torch.device("cpu")
        assert torch.zeros(1, device="cuda").device.type == "cpu"
        assert torch.zeros(1).cuda().device.type == "cpu"
        raise KeyError

    assert torch.cuda.current_device is before
    with pytest.raises((AssertionError, RuntimeError)):
        torch.zeros(1, device="cuda")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_rank_on_a_gpu_is_never_answered_for(device: str) -> None:
    """Only a rank whose device is the CPU enters the answers."""
    engine = MegatronEngine()
    engine._device = device
    before = torch.cuda.current_device
    with engine.around_pass():
        assert (torch.cuda.current_device is before) == (device == "cuda")


@pytest.mark.parametrize(
    ("device", "installed", "expected"), [("cpu", True, True), ("cuda", True, False), ("cuda", False, True)]
)
def test_layers_of_torch_stand_in_where_transformer_engine_is_missing(
    monkeypatch: pytest.MonkeyPatch, device: str, installed: bool, expected: bool
) -> None:
    """A GPU computes with Transformer Engine's layers if it is there, and does not fail without it."""
    monkeypatch.setattr(layers, "HAVE_TE", installed)

    assert layers.torch_computes(device) == expected
