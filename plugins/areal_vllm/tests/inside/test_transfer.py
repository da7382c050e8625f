"""A vLLM worker in the sender's own group, in a process of its own: over gloo, and over HCCL between two NPUs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from areal_torch.testing.ranks import run_ranks

SCRIPT = Path(__file__).with_name("transfer_ranks.py")


@pytest.fixture(scope="module", params=["cpu", pytest.param("npu", marks=pytest.mark.ascend)])
def ends(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Run both ends on a kind of device; return what each tells."""
    device: str = request.param
    folder = tmp_path_factory.mktemp(f"transfer-{device}")
    environs = [{"AREAL_TEST_DEVICE": device, "ASCEND_RT_VISIBLE_DEVICES": npu} for npu in ("0", "1")]
    run_ranks(SCRIPT, folder, 2, limit_s=100, environs=environs)
    told = [json.loads((folder / f"result-{rank}.json").read_text()) for rank in (0, 1)]
    return {"device": device, "sender": told[0], "worker": told[1]}


@pytest.mark.parametrize("version", ["1", "2"])
def test_what_is_sent_lies_in_the_model(version: str, ends: dict[str, Any]) -> None:
    """In its own parameters, on its device, and the worker's account of it is the sender's."""
    sent = ends["sender"][version]["fingerprints"]

    assert sent == ends["worker"][version]["model"] == ends["worker"][version]["received"]


def test_it_came_by_the_devices_own_road(ends: dict[str, Any]) -> None:
    """HCCL from NPU to NPU, gloo between CPUs; the second version through the group of the first."""
    first, second = (ends["sender"][version] for version in ("1", "2"))

    assert first["backend"] == {"cpu": "gloo", "npu": "hccl"}[ends["device"]]
    assert [ends["worker"][version]["group"] for version in ("1", "2")] == [ends["device"]] * 2
    assert first["group"] == second["group"]
    assert first["fingerprints"] != second["fingerprints"]


def test_an_accelerator_is_waited_for(ends: dict[str, Any]) -> None:
    """Else the next step might compute with weights that are still on their way; a CPU has nothing to wait for."""
    assert ends["worker"]["waited"] == {"cpu": 0, "npu": 2}[ends["device"]]
