"""Sequences over context ranks and heads over vocabulary ranks, on two and four real ranks, against one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from areal_core.contract.errors import LayoutError
from areal_torch.context import check_context
from areal_torch.testing.models import make_tiny_model
from areal_torch.testing.ranks import run_ranks

SCRIPT = Path(__file__).with_name("shared_ranks.py")
Gaps = dict[str, dict[str, float]]


@pytest.fixture(scope="module", params=[2, 4])
def gaps(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Gaps]:
    """Run all cases on so many ranks; return what each rank found."""
    world: int = request.param
    folder = tmp_path_factory.mktemp("shared")
    make_tiny_model(folder / "model", tied=False, vocab_size=67)
    seeds = [{"PYTHONHASHSEED": str(3 * (rank % 2))} for rank in range(world)]  # a set of outputs has two orders
    run_ranks(SCRIPT, folder, world, limit_s=180, environs=seeds)
    return [json.loads((folder / f"shared-{world}-{rank}.json").read_text()) for rank in range(world)]


@pytest.mark.parametrize(
    ("case", "bound"),
    [
        ("exchange", 0.0),
        ("attention", 2e-5),
        ("vocabulary", 2e-5),
        ("uneven_vocabulary", 2e-5),
        ("extremes", 0.0),
        ("context_model", 5e-5),
        ("vocabulary_model", 5e-5),
        ("context_values", 5e-5),
    ],
)
@pytest.mark.slow
def test_several_ranks_compute_what_one_rank_computes(gaps: list[Gaps], case: str, bound: float) -> None:
    """Law 6: columns and gradients do not depend on how many ranks share sequences, or rows of the head."""
    for rank, found in enumerate(gaps):
        for what, worst in found[case].items():
            assert worst <= bound, f"{what} on rank {rank}"


@pytest.mark.parametrize(("degree", "query_heads", "kv_heads"), [(2, 4, 2), (4, 4, 2), (4, 8, 1), (2, 6, 6)])
def test_degrees_that_share_the_heads_are_taken(degree: int, query_heads: int, kv_heads: int) -> None:
    """Key heads may be fewer than ranks: they are repeated."""
    check_context(degree, query_heads, kv_heads)


@pytest.mark.parametrize(
    ("degree", "query_heads", "kv_heads", "says"),
    [(3, 4, 2, "c3 does not divide 4 attention heads"), (4, 12, 3, "c4 does not divide 3 key and value heads")],
)
def test_degrees_that_do_not_are_refused(degree: int, query_heads: int, kv_heads: int, says: str) -> None:
    """Before anything loads, naming the heads and the degrees that would do."""
    with pytest.raises(LayoutError, match=says):
        check_context(degree, query_heads, kv_heads)
