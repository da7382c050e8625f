"""What goes between a controller and a relay: in order, whole, and large frames without a copy."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from areal_ray.news import InOrder, packed, unpacked
from areal_ray.relay import carried

LARGE = 100_000


@given(st.integers(1, 6).flatmap(lambda count: st.permutations(range(count))))
def test_messages_are_passed_on_in_the_order_they_were_sent_in(arriving: list[int]) -> None:
    """Ray does not promise that calls of an actor begin in order; a training rank's calls have one."""
    order, passed = InOrder(), list[bytes]()

    for number in arriving:
        passed += [bytes(due[0]) for due in order.due(number, [b"%d" % number])]

    assert passed == [b"%d" % number for number in range(len(arriving))]


@given(st.lists(st.one_of(st.binary(max_size=50), st.just(bytes(LARGE))), min_size=1, max_size=4), st.integers(0, 2))
def test_frames_come_back_as_they_were(frames: list[bytes], num_plain: int) -> None:
    """Plain ones as bytes, large ones as a view of what Ray handed over."""
    back = unpacked(packed(frames), num_plain=num_plain)

    assert [bytes(frame) for frame in back] == frames
    assert all(isinstance(frame, bytes) for frame in back[:num_plain])


def test_a_large_frame_is_not_copied() -> None:
    """Ray takes its memory over as it is."""
    memory = bytearray(LARGE)
    (array,) = packed([memoryview(memory)])
    memory[0] = 7

    assert isinstance(array, np.ndarray) and array[0] == 7


def test_only_variables_of_areal_reach_other_hosts() -> None:
    """Those of the user's shell are of the controller's machine."""
    assert carried({"AREAL_PLUGINS": "x", "HOME": "/root", "HF_TOKEN": "hunter2"}) == {"AREAL_PLUGINS": "x"}
