"""What is wrong with a set of names is said of the side that has them."""

from __future__ import annotations

import pytest

from areal_core.contract.errors import CoverageError
from areal_core.contract.weights import Receipt, TensorSpec, WeightManifest
from areal_core.weights.coverage import check_names, compare


def manifest(*names: str) -> WeightManifest:
    return WeightManifest(version=1, tensors=[TensorSpec(name=name, dtype="float32", shape=(1,)) for name in names])


@pytest.mark.parametrize(
    ("own", "sent", "told"),
    [
        ({"a", "b"}, ("a",), "'b' is known to the model but not to the sender"),
        ({"a"}, ("a", "b"), "'b' is known to the sender but not to the model"),
    ],
)
def test_a_name_without_a_partner_is_said_to_be_where_it_is(own: set[str], sent: tuple[str, ...], told: str) -> None:
    with pytest.raises(CoverageError, match=told):
        check_names(own, manifest(*sent))


@pytest.mark.parametrize(
    ("trainer", "replica", "told"),
    [
        (("a", "b"), ("a",), "'b' is known to the trainer but not to rollout/0"),
        (("a",), ("a", "b"), "'b' is known to rollout/0 but not to the trainer"),
    ],
)
def test_so_it_is_of_receipts(trainer: tuple[str, ...], replica: tuple[str, ...], told: str) -> None:
    sent, held = (
        Receipt(version=1, num_bytes=4, seconds=0.0, fingerprints=dict.fromkeys(names, "0" * 32))
        for names in (trainer, replica)
    )
    with pytest.raises(CoverageError, match=told):
        compare(sent, held, "rollout/0")
