"""What a row holds arrives at the reward function as it was, and nothing on the way is unpickled."""

from __future__ import annotations

import contextlib
import datetime
import decimal
import pathlib
import uuid
from collections import OrderedDict
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from areal_core.contract.errors import CodecError
from areal_core.contract.workflow import RewardInput
from areal_local.rewards.messages import decode, decode_completions, encode, encode_completions

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(),
    st.binary(),
    st.datetimes(timezones=st.sampled_from([None, datetime.UTC])),
    st.dates(),
    st.decimals(allow_nan=False),
    st.uuids(),
    st.sampled_from([pathlib.Path("/a/b"), pathlib.Path("c")]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner), st.lists(inner).map(tuple), st.dictionaries(st.text(), inner), st.sets(SCALARS)
    ),
    max_leaves=20,
)


def arrived(row: dict[str, Any]) -> Any:
    """Return a row at the other end. Any: as data sets."""
    value = RewardInput(prompt="p", completion="c", completion_ids=(1, 2), stop_reason="stop", row=row)
    (back,) = decode_completions(encode_completions([value]))
    assert (back.prompt, back.completion, tuple(back.completion_ids)) == ("p", "c", (1, 2))
    return back.row


@given(st.dictionaries(st.text(), VALUES))
def test_rows_arrive_as_they_were(row: dict[str, Any]) -> None:
    """Lists stay lists, tuples tuples, sets sets; dates, decimals, paths and large numbers are what they were."""
    assert repr(arrived(row)) == repr(row) or arrived(row) == row


def test_arrays_and_images_arrive(tmp_path: pathlib.Path) -> None:
    """A decoded image of a data set is an image again; arrays and numbers of numpy keep type and shape."""
    image = Image.new("RGB", (3, 2), (10, 20, 30))
    row = {
        "image": image,
        "array": numpy.arange(6, dtype=numpy.int16).reshape(2, 3),
        "number": numpy.float32(0.5),
        "text": numpy.str_("word"),
        "ordered": OrderedDict(a=1),
        "nested": [{"image": image}],
    }

    back = arrived(row)

    assert back["image"].tobytes() == image.tobytes() == back["nested"][0]["image"].tobytes()
    assert back["array"].dtype == numpy.int16 and (back["array"] == row["array"]).all()
    assert back["number"] == numpy.float32(0.5) and isinstance(back["number"], numpy.float32)
    assert (back["text"], back["ordered"]) == ("word", {"a": 1})


def test_what_does_not_travel_is_refused_by_column_and_type() -> None:
    """An object of the user's own is named before anything is sent."""
    with pytest.raises(CodecError, match=r"column 'odd' of a row holds builtins\.object") as told:
        arrived({"odd": [object()]})

    assert "arrays, images" in told.value.fix


@given(st.binary(max_size=64))
def test_any_bytes_are_a_message_or_a_codec_error(data: bytes) -> None:
    """Whatever a process sends, nothing but a codec error comes of it."""
    with contextlib.suppress(CodecError):
        decode(data)


def test_a_torn_message_is_told() -> None:
    """A message cut anywhere is a codec error."""
    whole = encode({"a": [1, 2, 3], "b": (decimal.Decimal(1).as_tuple().digits)})

    for length in range(len(whole)):
        with pytest.raises(CodecError):
            decode(whole[:length])


def test_a_uuid_is_a_uuid() -> None:
    """One plain case beside the property."""
    assert arrived({"id": uuid.UUID(int=5)}) == {"id": uuid.UUID(int=5)}
