"""What a rank's error says of time."""

from __future__ import annotations

import pytest

from areal_conformance.ranks.faults import gave_up
from areal_core.contract.errors import ResourceError


def _caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RuntimeError("[gloo] Timed out waiting 3000ms for recv operation to complete"), True),
        (RuntimeError("Connection closed by peer [127.0.0.1]:4242"), True),
        (_caused(ResourceError("rank 1 of 2 cannot reach the others"), RuntimeError("wait timed out")), True),
        (RuntimeError("shapes do not fit"), False),
    ],
)
def test_a_limit_of_a_collective_is_one_of_time(error: Exception, expected: bool) -> None:
    """On a machine without a processor to spare it says nothing; what is wrong fails on any machine."""
    assert expected == gave_up(error)
