"""What the scheduler checks send: everything the contract has, and a comparison that sees every difference."""

from __future__ import annotations

import math

import attrs
import pytest

from areal_conformance.benches.scheduler_values import contract_values, difference, every_error, plain_values
from areal_conformance.checks.scheduler.access import _like_a_key
from areal_core.contract import data, inference, scheduler, train, weights, workflow
from areal_core.contract.errors import PromptTooLong
from areal_core.contract.inference import SamplingParams

MODULES = (data, inference, scheduler, train, weights, workflow)
OF_TENSORS = {"Trajectory", "Episode"}


def test_every_contract_type_is_sent() -> None:
    """A type added to the contract must be added here: these are those without tensors."""
    wanted = {
        kind.__name__
        for module in MODULES
        for kind in vars(module).values()
        if isinstance(kind, type) and kind.__module__ == module.__name__ and attrs.has(kind)
    }
    sent = {name.partition(" ")[0] for name in contract_values()} | {"VersionSpan", "Timings", "Sum"}

    assert wanted - OF_TENSORS - sent == set()


def test_no_field_is_left_at_its_default() -> None:
    """A field that is dropped on the way must show."""
    for name, value in contract_values().items():
        if not attrs.has(type(value)) or name.startswith(("TensorSpec", "TrainReport")):
            continue
        for field in attrs.fields(type(value)):
            default = field.default.factory() if isinstance(field.default, attrs.Factory) else field.default  # type: ignore[arg-type]
            assert default is attrs.NOTHING or getattr(value, field.name) != default, f"{name}.{field.name}"


def test_values_are_the_same_as_themselves() -> None:
    """Nan and minus zero included."""
    for value in (*plain_values().values(), *contract_values().values(), *every_error()):
        assert difference(value, value) is None


@pytest.mark.parametrize(
    ("sent", "given"),
    [
        ((1, 2), [1, 2]),
        (1, True),
        (1, 1.0),
        (0.0, -0.0),
        (math.nan, 0.0),
        ([1, 2], [1, 2, 3]),
        ({"a": 1}, {"a": 2}),
        ({"a": 1}, {"a": 1, "b": 2}),
        ({1: "x"}, {"1": "x"}),
        (b"a", "a"),
        (frozenset({1}), {1}),
        (SamplingParams(seed=1), SamplingParams(seed=2)),
        (SamplingParams(stop=("a",)), SamplingParams()),
        (PromptTooLong("a"), ValueError("a")),
    ],
)
def test_a_difference_is_seen(sent: object, given: object) -> None:
    """In type, in bits, in length, in keys, in fields."""
    assert difference(sent, given) is not None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("7Fq0zWb2LxY9mKd4RtNs8VhJc3PgAe6U", True),
        ("--key=7Fq0zWb2LxY9mKd4RtNs8VhJc3PgAe6U", True),
        ("deadbeef0123456789abcdef0123456789abcdef", True),
        ("areal_proof.second.scheduler_worker", False),
        ("/tmp/areal-conformance-k3j2h4g5/check-0001/python", False),
        ("2026-11-20", False),
    ],
)
def test_what_looks_like_a_key(text: str, expected: bool) -> None:
    """Long mixed texts do, names of modules and paths do not."""
    assert _like_a_key(text) is expected
