"""The Ascend engine on one and two NPU ranks, made of stand-ins, against the FSDP engine on the CPU."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from areal_torch.testing.ranks import run_ranks

pytestmark = pytest.mark.ascend
SCRIPT = Path(__file__).with_name("ranks.py")
NAMES = {
    1: ["whole", "pieces"],
    2: ["d2", "d2 in pieces", "d2 in host memory", "t2", "c2", "d2 with experts", "d2 as critic", "d2 in bfloat16"],
}
TRAINED = [(world, name) for world, names in NAMES.items() for name in names]
RANKS = [(1, 0), (2, 0), (2, 1)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run all cases on one rank, then on two, in three processes."""
    from areal_torch.testing.models import make_tiny_model

    path = tmp_path_factory.mktemp("ascend")
    make_tiny_model(path / "model", vocab_size=66)
    make_tiny_model(path / "experts", kind="qwen3_moe", vocab_size=66, tied=False)
    for world in (1, 2):
        run_ranks(SCRIPT, path, world, limit_s=500)
    return path


@pytest.mark.parametrize(("world", "case"), TRAINED)
def test_steps_on_npus_are_those_on_the_cpu(world: int, case: str, folder: Path) -> None:
    """Loss and norm of three steps, every gradient of the first, all weights and scores after the last."""
    for rank in range(world):
        result = results(folder, world, rank)[case]
        exact = "bfloat16" not in case

        for expected, found in zip(result["cpu"]["steps"], result["npu"]["steps"], strict=True):
            assert expected == pytest.approx(found, rel=3e-5 if exact else 2e-2)
        assert result["cpu"]["scored"] == pytest.approx(result["npu"]["scored"], rel=1e-4 if exact else 2e-2)
        assert result["cpu"]["microbatches"] == result["npu"]["microbatches"]
        limits = {name: 1e-3 if name.startswith("weight") else 1e-4 for name in result["gaps"]}
        wrong = {name: gap for name, gap in result["gaps"].items() if gap > (limits[name] if exact else 0.2)}
        assert not wrong, f"rank {rank}"


@pytest.mark.parametrize(("world", "case"), TRAINED)
def test_everything_was_on_an_npu_and_attention_in_its_kernel(world: int, case: str, folder: Path) -> None:
    """The comparison above compares two devices: HCCL, parameters on the NPU, one kernel call per layer and pass."""
    for rank in range(world):
        result = results(folder, world, rank)[case]

        assert ["ascend", f"npu:{rank}", "hccl"] == result["npu"]["info"]
        assert result["cpu"]["info"] == ["fsdp", "cpu", "gloo"]
        assert ["cpu" if "host memory" in case else "npu"] == result["npu"]["places"]
        assert (result["cpu"]["calls"], result["npu"]["calls"] > 0) == (0, True)
        assert results(folder, world, rank)["memory"] > 0


@pytest.mark.parametrize(("world", "rank"), RANKS)
def test_a_state_goes_on_exactly_on_npus_and_is_read_on_the_cpu(world: int, rank: int, folder: Path) -> None:
    """The same bits after the next step on NPUs; on the CPU the same step to rounding."""
    found = results(folder, world, rank)["states"]

    assert found["expected"] == found["npu"]["step"]
    assert found["tensors"] == found["npu"]["same"]
    assert found["tensors"] > 20 or rank > 0
    assert found["expected"] == pytest.approx(found["cpu"]["step"], rel=3e-5)
    assert [found[device]["version"] for device in ("npu", "cpu")] == [7, 7]


@pytest.mark.parametrize(("world", "rank"), RANKS)
def test_weights_are_streamed_over_hccl(world: int, rank: int, folder: Path) -> None:
    """Where every participant has an NPU of its own, the group is HCCL's and bytes go from NPU to NPU."""
    found = results(folder, world, rank)["stream"]

    assert found["backend"] == "hccl"
    assert len(set(found["places"])) == world
    assert f"npu:{rank}" == found["device"]
    assert sum(range(256)) == found["sum"]


def test_who_leaves_a_group_over_hccl_wakes_the_others(folder: Path) -> None:
    """Long before the time a broadcast is given."""
    found = results(folder, 2, 1)["stream"]

    assert found["left"]
    assert found["after_s"] < 30


@pytest.mark.parametrize(
    ("case", "kind", "says"),
    [
        ("cpu", "ResourceError", "use the backend fsdp"),
        ("toolkit", "ResourceError", "set_env.sh"),
        ("pipeline", "LayoutError", "no pipeline parallelism"),
    ],
)
def test_what_cannot_be_is_refused(case: str, kind: str, says: str, folder: Path) -> None:
    """On every rank, before it meets the others."""
    for world, rank in RANKS:
        name, text = results(folder, world, rank)["refusals"][case]

        assert kind == name
        assert says in text


def test_the_cases_read_are_those_that_ran(folder: Path) -> None:
    """Names are written twice, for the script imports torch_npu and this file need not."""
    spec = importlib.util.spec_from_file_location("ascend_ranks", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    assert {world: list(cases) for world, cases in module.CASES.items()} == NAMES


def results(folder: Path, world: int, rank: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / f"results-{world}-{rank}.json").read_text())
    return found
