"""The Megatron engine on one, two and four real ranks, against a bare PyTorch loop over unpacked sequences."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file

from areal_torch.testing.axes.claims import WORLDS, HeldToAPlainLoop, cases, change, make_models, results
from areal_torch.testing.axes.oracle import Oracle

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]  # two and four real ranks, many layouts in one start
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16}


class TestMegatron(HeldToAPlainLoop):
    """Interleaved stages, shared masters, and experts taken from tensor ranks among the cases."""

    script = Path(__file__).with_name("ranks.py")
    trained = (*HeldToAPlainLoop.trained, "tied")
    refusals = {  # noqa: RUF012
        "ranks": ("LayoutError", "2 ranks for a layout of 4"),
        "heads": ("LayoutError", "t2 does not divide 3 key and value heads"),
        "context_heads": ("LayoutError", "c2 does not divide 3 attention heads"),
        "layers": ("LayoutError", "p2 does not divide 3 layers"),
        "virtual_layers": ("LayoutError", "4 stages do not divide 2 layers"),
        "no_pipeline": ("LayoutError", "virtual: 2 needs a pipeline"),
        "experts": ("LayoutError", "e2 is for models with experts"),
        "too_many_experts": ("LayoutError", "e4 does not divide 2 ranks of a stage"),
        "odd_experts": ("LayoutError", "e2 does not divide 3 experts"),
        "cut_experts": ("LayoutError", "expert_tensor: 2 is for models with experts"),
        "too_many_cuts": ("LayoutError", "e2 with expert_tensor: 2 does not divide 2 ranks of a stage"),
        "odd_columns": ("LayoutError", "expert_tensor: 2 does not divide the 31 columns of an expert"),
        "family": ("ModelError", "no model of type 'granite'"),
        "biases": ("ModelError", "biases on all linear layers"),
        "positions": ("ModelError", "rotary positions of type 'yarn'"),
        "missing_shard": ("ModelError", "missing: model.layers.1."),
        "other_weights": ("ModelError", "has the shape [66, 64]"),
        "adapter": ("CapabilityError", "not an adapter of rank 2"),
    }

    @classmethod
    def make_models(cls, path: Path) -> None:
        """Add what Megatron's table does not have."""
        make_models(path)
        change(path, "llama", "biased", attention_bias=True)
        change(path, "llama", "stretched", rope_parameters=YARN)
        change(path, "moe", "odd_columns", moe_intermediate_size=31)

    def test_cases_cut_what_they_say_they_cut(self, folder: Path) -> None:
        """Several micro-batches where several are wanted."""
        counts = {n: case["steps"][0]["microbatches"] for world in WORLDS for n, case in cases(folder, world).items()}

        assert counts["qwen3/d2"] == 1
        assert counts["many"] == counts["many_p"] == 4
        assert counts["interleaved_d"] == 2

    def test_masters_and_moments_that_are_shared_lie_on_one_rank_each(self, folder: Path) -> None:
        """With `distributed_optimizer` all ranks' moments are two for each number of the model, not two on each."""
        numbers = sum(each.numel() for each in load_file(folder / "odd" / "model.safetensors").values())
        ranks = [cases(folder, 2, rank) for rank in range(2)]

        assert sum(found["odd/shared_d2"]["moments"] for found in ranks) == 2 * numbers
        assert sum(found["qwen3/d2"]["moments"] for found in ranks) > 2 * numbers

    @pytest.mark.parametrize(("world", "name", "shares"), [(2, "cut_d2", 2), (4, "cut_d2t2", 2), (4, "cut_d2t2e2", 4)])
    def test_experts_are_cut_as_often_as_said(self, world: int, name: str, shares: int, folder: Path) -> None:
        """Every rank holds that share of all experts, whatever it holds of the layers around them."""
        tensors = load_file(folder / "moe" / "model.safetensors")
        whole = sum(each.numel() for key, each in tensors.items() if ".experts." in key)

        for rank in range(world):
            assert cases(folder, world, rank)[f"moe/{name}"]["experts"] == whole // shares

    @pytest.mark.parametrize("world", [2, 4])
    def test_resume_with_cut_experts_is_exact(self, world: int, folder: Path) -> None:
        """The next step after loading is the same bits."""
        for rank in range(world):
            resumed = results(folder, world, rank)["cut"]
            assert resumed["expected"] == resumed["actual"]

    def test_the_norm_needs_no_marks_of_megatron(self, folder: Path) -> None:
        """Weights that are not initialised, but read, never get `tensor_model_parallel`, by which Megatron counts.

        Counted so a norm would leave out every cut weight of all tensor ranks but the first. Here boxes tell who
        counts, and the norms of the other tests are whole.
        """
        marked = {name for world in WORLDS for name, case in cases(folder, world).items() if case["marked"]}

        assert not marked

    def test_an_error_in_scoring_ends_the_step_on_every_stage(self, folder: Path, oracles: dict[str, Oracle]) -> None:
        """The stage that scores raises its own, the other says where to look; nothing of the step is left."""
        first, last = (results(folder, 2, rank)["unscored"] for rank in range(2))

        assert first["error"][0] == "TrainError"
        assert "could not be scored" in first["error"][1]
        assert last["error"][0] == "BatchError"
        for told in (first, last):
            loss, norm = oracles["qwen3"].steps[0]
            assert told["after"]["loss"] == pytest.approx(loss, rel=1e-4)
            assert told["after"]["grad_norm"] == pytest.approx(norm, rel=1e-4)
