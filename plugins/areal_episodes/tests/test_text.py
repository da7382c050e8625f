"""Rows of a data set are kept as JSON that any reader takes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from areal_episodes.text import row_as_json

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text()


@given(st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_a_row_is_kept_as_json_whatever_numbers_it_holds(value: Any) -> None:
    """A data set may hold NaN; a browser's JSON has no word for it, and the page of the episode must open."""
    kept = json.loads(row_as_json({"answer": value}), parse_constant=lambda word: pytest.fail(word))

    assert kept.keys() == {"answer"}
