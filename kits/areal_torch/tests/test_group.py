"""Agreement between ranks, over a real gloo group of one and a recorded one of two."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from attrs import frozen

from areal_core.contract.errors import BatchError, StorageError, TrainError
from areal_torch.group import ProcessRanks, SingleRank, agree


@frozen
class WithPeer:
    """Rank 0 of two; the peer always answers `peer`."""

    peer: Any
    rank: int = 0
    size: int = 2

    def gather(self, value: Any) -> list[Any]:
        return [value, self.peer]


@pytest.fixture
def gloo(tmp_path: Path) -> Iterator[ProcessRanks]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield ProcessRanks(rank=0, size=1, control=dist.group.WORLD, data_ranks=(0,))
    dist.destroy_process_group()


@pytest.mark.parametrize("size", [0, 1, 4087, 4088, 4089, 20_000])
def test_bytes_of_any_size_arrive(gloo: ProcessRanks, size: int) -> None:
    """Short ones travel in one message, long ones in two."""
    payload = bytes(range(1, 251)) * (size // 250 + 1)

    assert gloo._exchanged(payload[:size]) == [payload[:size]]


@pytest.mark.parametrize("value", [None, {"a": [1, 2.5, "x"]}, "ü" * 5000, list(range(3000))])
def test_any_json_arrives(gloo: ProcessRanks, value: Any) -> None:
    """As json has it, also at a rank that is alone: a tuple becomes a list."""
    assert gloo.gather(value) == [value]
    assert gloo.gather((1, 2)) == [[1, 2]]


def test_floats_arrive_to_the_bit(gloo: ProcessRanks) -> None:
    """Normalisers and norms are not rounded on the way."""
    values = [0.1, 1 / 3, 1e-300, float("inf")]

    assert gloo.gather(values) == [values]


def test_results_come_in_rank_order() -> None:
    """Everyone sees everyone's."""
    assert agree(WithPeer({"value": 7}), lambda: 3) == [3, 7]
    assert agree(SingleRank(), lambda: 3) == [3]


def test_a_peers_error_is_raised_here_with_its_class_and_reason() -> None:
    """The rank is named; an error that is not ours becomes a TrainError."""
    ours = {"error": {"kind": "StorageError", "what": "disk full", "why": "because", "fix": "free some"}}
    with pytest.raises(StorageError, match="rank 1: disk full") as caught:
        agree(WithPeer(ours), lambda: 3)
    other = {"error": {"kind": "TrainError", "what": "KeyError: 'x'", "why": "", "fix": ""}}
    with pytest.raises(TrainError, match="rank 1: KeyError"):
        agree(WithPeer(other), lambda: 3)

    assert (caught.value.why, caught.value.fix) == ("because", "free some")


def test_ones_own_error_is_raised_as_it_was() -> None:
    """After telling the others."""
    told: list[Any] = []

    class Recorder(WithPeer):
        def gather(self, value: Any) -> list[Any]:
            told.append(value)
            return [value, {"value": 1}]

    def fail() -> None:
        raise BatchError("too long", why="w", fix="f")

    with pytest.raises(BatchError, match=r"^too long"):
        agree(Recorder(None), fail)
    assert told == [{"error": {"kind": "BatchError", "what": "too long", "why": "w", "fix": "f"}}]
