"""Copies in tiles and threads hold the same bytes, and have the same fingerprints, as copies of whole tensors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

import pytest
import torch
from torch import Tensor

from areal_core.weights.tensors import fingerprint
from areal_torch import proved_copy
from areal_torch.proved_copy import copy_proved, prove


def _tensors() -> list[Tensor]:
    """Return tensors around the size of a tile, of odd sizes, and of every kind of stride."""
    generator = torch.Generator().manual_seed(3)
    tile = proved_copy.TILE_BYTES
    flat = [torch.randint(0, 256, (size,), generator=generator, dtype=torch.uint8) for size in (0, 1, tile - 1, tile)]
    large = torch.randn(2 * tile // 4 + 3, generator=generator)
    square = torch.randn(300, 200, generator=generator)
    return [*flat, large, square, square.t(), square[::2], torch.tensor(2.5), large.to(torch.bfloat16)[1:]]


@pytest.mark.parametrize("worth", [1, 1 << 40])
def test_every_copy_is_whole_and_proved_by_its_own_bytes(monkeypatch: pytest.MonkeyPatch, worth: int) -> None:
    """In threads and without: targets equal sources bit for bit, and fingerprints are those of the targets."""
    monkeypatch.setattr(proved_copy, "_WORTH_A_THREAD", worth)
    sources = _tensors()
    targets = [torch.full_like(source, 7, memory_format=torch.contiguous_format) for source in sources]

    found = copy_proved(zip(targets, sources, strict=True))

    assert all(torch.equal(target, source) for target, source in zip(targets, sources, strict=True))
    assert found == [fingerprint(source) for source in sources]
    assert prove(sources) == found


def test_what_is_proved_is_what_the_target_holds() -> None:
    """A target that cannot hold what it is given, as one of another dtype, is proved by what it does hold."""
    target, source = torch.zeros(5, dtype=torch.bfloat16), torch.linspace(0.1, 1.7, 5)

    (found,) = copy_proved([(target, source)])

    assert found == fingerprint(source.to(torch.bfloat16)) != fingerprint(source)


def test_parameters_are_copied_without_a_gradient_of_it() -> None:
    """A trainer's own parameters can be handed over as they are, strided ones too."""
    parameter = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3))
    targets = [torch.zeros(2, 3), torch.zeros(3, 2)]

    copy_proved([(targets[0], parameter), (targets[1], parameter.t())])

    assert not any(target.requires_grad for target in targets)
    assert torch.equal(targets[1], parameter.detach().t())


def test_strided_targets_are_filled_in_place() -> None:
    """A target may be part of a larger tensor, whose other elements stay."""
    whole = torch.zeros(4, 6)

    (found,) = copy_proved([(whole[:, 1:3], torch.ones(4, 2))])

    assert found == fingerprint(torch.ones(4, 2))
    assert whole.sum() == 8.0


def test_the_caller_and_other_threads_share_the_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody only hands out work: two tensors that wait for one another are proved, one by the caller."""
    meeting = threading.Barrier(2)
    callers = _in_two_threads(monkeypatch, lambda: meeting.wait(30.0))

    assert prove([torch.zeros(3), torch.ones(3)]) == [fingerprint(torch.zeros(3)), fingerprint(torch.ones(3))]
    assert callers.count(threading.current_thread()) == 1


def test_what_fails_in_another_thread_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fingerprint that cannot be made is an error of the whole call, not a tensor without one."""
    meeting = threading.Barrier(2)

    def fail_elsewhere() -> None:
        meeting.wait(30.0)
        if threading.current_thread() is not caller:
            raise MemoryError("no room")

    caller = threading.current_thread()
    _in_two_threads(monkeypatch, fail_elsewhere)

    with pytest.raises(MemoryError, match="no room"):
        prove([torch.zeros(3), torch.ones(3)])


def _in_two_threads(monkeypatch: pytest.MonkeyPatch, first: Callable[[], object]) -> list[threading.Thread]:
    """Have the least of tensors shared out on a machine of two cores; return who made a fingerprint, after `first`."""
    seen: list[threading.Thread] = []

    def made(tensor: Tensor, parts: Iterable[memoryview] | None = None) -> str:
        seen.append(threading.current_thread())
        first()
        return fingerprint(tensor, parts)

    monkeypatch.setattr(proved_copy, "_WORTH_A_THREAD", 1)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1}, raising=False)
    monkeypatch.setattr(proved_copy, "fingerprint", made)
    return seen
