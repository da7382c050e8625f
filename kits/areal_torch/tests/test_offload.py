"""Memory given up and taken back: every alias sees the same bits again, and failures leave everything in place."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
import torch

from areal_core.contract.errors import StorageError
from areal_core.contract.train import OptimizerSpec
from areal_torch import offload
from areal_torch.offload import DeviceMemory, own_memory
from areal_torch.optimizer import Optimizer, local

CPU = torch.device("cpu")


def tensors() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(7, 5, generator=generator),
        torch.randn(3, generator=generator).to(torch.bfloat16),
        torch.arange(6),
        torch.zeros(0),
    ]


def held(things: list[torch.Tensor]) -> int:
    return sum(tensor.untyped_storage().nbytes() for tensor in things)


def test_memory_is_given_up_and_comes_back_to_the_bit() -> None:
    """Any dtype, and an alias made before, as an optimizer holds one; twice, and idempotent."""
    things = tensors()
    wanted = [tensor.clone() for tensor in things]
    alias = things[0].detach().view(-1)[3:]
    memory = DeviceMemory(CPU, things)
    for _ in range(2):
        memory.offload()
        memory.offload()
        assert memory.away
        assert held(things) == 0

        memory.onload()
        memory.onload()

        assert not memory.away
        assert all(torch.equal(tensor, before) for tensor, before in zip(things, wanted, strict=True))
        assert torch.equal(alias, wanted[0].view(-1)[3:])
        things[0].mul_(2.0)
        wanted[0].mul_(2.0)


def test_a_storage_of_two_tensors_moves_once() -> None:
    """Tied weights are written once and are still one afterwards."""
    whole = torch.arange(8.0)
    memory = DeviceMemory(CPU, [whole[:5], whole[2:]])

    memory.offload()
    memory.onload()

    assert torch.equal(whole, torch.arange(8.0))


def test_host_memory_gives_back_the_same_bits() -> None:
    """What an accelerator's memory is copied to; here both are the host's, so only the copies are looked at."""
    things = [torch.arange(5, dtype=torch.uint8), torch.tensor([255, 0], dtype=torch.uint8)]
    place = offload._HostMemory(things)
    wanted = [tensor.clone() for tensor in things]
    for tensor in things:
        tensor.zero_()

    place.fetch(things)

    assert all(torch.equal(tensor, before) for tensor, before in zip(things, wanted, strict=True))


def test_tensors_of_another_device_stay() -> None:
    """With parameters offloaded to the host (`cpu_offload`) an accelerator has nothing of them to give up."""
    things = tensors()
    memory = DeviceMemory(torch.device("meta"), things)

    assert memory._storages() == []


def test_no_room_leaves_everything_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk is a StorageError that names the folder; nothing was freed and nothing is away."""

    class Full:
        def write(self, data: Any) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        def close(self) -> None:
            pass

    things = tensors()
    monkeypatch.setattr(offload.tempfile, "TemporaryFile", Full)
    memory = DeviceMemory(CPU, things)

    with pytest.raises(StorageError, match="moved off the device") as raised:
        memory.offload()

    assert "No space left" in raised.value.why
    assert not memory.away
    assert torch.equal(things[2], torch.arange(6))


def test_memory_that_numpy_looks_into_is_not_freed() -> None:
    """Freeing it would leave the array without memory: refused, and all tensors stay."""
    things = tensors()
    array = things[0].numpy()
    memory = DeviceMemory(CPU, things)

    with pytest.raises(StorageError, match="cannot be moved"):
        memory.offload()

    assert not memory.away
    assert float(array[0, 0]) == float(things[0][0, 0])
    assert held(things) > 0


def test_a_mapped_model_gets_memory_of_its_own(tmp_path: Path) -> None:
    """safetensors maps files; after `own_memory` the parameters can be given up."""
    from safetensors.torch import load_file, save_file

    save_file({"weight": torch.randn(3, 4)}, tmp_path / "model.safetensors")
    layer = torch.nn.Linear(4, 3, bias=False)
    layer.weight = torch.nn.Parameter(load_file(tmp_path / "model.safetensors")["weight"])
    wanted = layer.weight.detach().clone()

    own_memory(layer)
    memory = DeviceMemory(CPU, layer.parameters())
    memory.offload()
    memory.onload()

    assert torch.equal(layer.weight, wanted)


def test_an_optimizer_steps_on_what_came_back() -> None:
    """The step after a turn away equals the step without it: the aliases inside AdamW see the memory again."""
    found = []
    for moved in (False, True):
        parameter = torch.nn.Parameter(torch.arange(4.0))
        optimizer = Optimizer({"w": parameter}, OptimizerSpec(lr=0.1))
        memory = DeviceMemory(CPU, [parameter, *optimizer.tensors])
        for step in range(3):
            if moved:
                memory.offload()
                memory.onload()
            parameter.grad = torch.full((4,), float(step + 1))
            optimizer.step(1.0)
        found.append(local(parameter).clone())

    assert torch.equal(found[0], found[1])
