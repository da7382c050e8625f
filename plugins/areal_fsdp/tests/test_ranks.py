"""The FSDP engine on one and on two real ranks, against a bare PyTorch loop over unpacked sequences."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification

from areal_core.weights.tensors import fingerprint
from areal_torch.testing.batches import make_batch
from areal_torch.testing.models import make_tiny_model
from areal_torch.testing.ranks import run_ranks

Results = dict[str, dict[str, Any]]
SCRIPT = Path(__file__).with_name("ranks.py")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run all cases on two ranks, then on one, in three processes."""
    path = tmp_path_factory.mktemp("fsdp")
    make_tiny_model(path / "model", vocab_size=65)  # an odd number: ranks hold unequal shards
    run_ranks(SCRIPT, path, 2, limit_s=120)
    run_ranks(SCRIPT, path, 1, limit_s=120)
    return path


@pytest.fixture(scope="module")
def one(folder: Path) -> Results:
    return _results(folder, 1, 0)


@pytest.fixture(scope="module")
def two(folder: Path) -> Results:
    return _results(folder, 2, 0)


@pytest.fixture(scope="module")
def oracle(folder: Path) -> tuple[list[tuple[float, float]], dict[str, torch.Tensor]]:
    """Take three steps with transformers, torch.optim and one sequence at a time; return (loss, norm) and weights."""
    batch = make_batch([(2, 3), (1, 5), (4, 9), (3, 1), (2, 12), (6, 2), (1, 1), (5, 7)])
    advantages = torch.randn(batch.num_tokens, generator=torch.Generator().manual_seed(3))
    model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    adam = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    reports = []
    for _ in range(3):
        loss = torch.zeros(())
        for start, end in zip(batch.cu_seqlens[:-1].tolist(), batch.cu_seqlens[1:].tolist(), strict=True):
            ids, mask = batch.tokens["input_ids"][start:end], batch.tokens["loss_mask"][start:end][1:]
            log_p = model(input_ids=ids[None]).logits[0, :-1].log_softmax(-1)
            entropy = -(log_p.exp() * log_p).sum(-1)
            gain = advantages[start:end][1:] * log_p.gather(1, ids[1:, None])[:, 0] + 0.01 * entropy
            loss = loss - gain[mask].sum() / batch.tokens["loss_mask"].sum()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        reports.append((float(loss.detach()), float(norm)))
        adam.step()
        adam.zero_grad()
    return reports, {name: parameter.detach() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("case", ["steps", "microbatched", "uneven"])
def test_loss_and_gradient_do_not_depend_on_ranks_packing_or_microbatches(
    case: str, world: int, folder: Path, oracle: tuple[list[tuple[float, float]], Any]
) -> None:
    """Law 6: three steps equal a plain loop, whole, cut up, recomputed, or with all data on one rank."""
    steps = _results(folder, world, 0)[case]["steps"]

    for (loss, norm), step in zip(oracle[0], steps, strict=True):
        assert step["loss"] == pytest.approx(loss, rel=1e-5)
        assert step["grad_norm"] == pytest.approx(norm, rel=1e-5)
        assert step["stepped"]


def test_every_rank_reports_the_same(folder: Path) -> None:
    """Reports are reduced: rank 1 says what rank 0 says, to the bit."""
    first, second = _results(folder, 2, 0), _results(folder, 2, 1)

    for case in ("steps", "microbatched", "uneven", "value_head"):
        assert first[case]["steps"] == second[case]["steps"], case


def test_cases_cut_what_they_say_they_cut(one: Results, two: Results) -> None:
    """The invariance above compares different ways of cutting, not the same one twice."""
    counts = [results[case]["steps"][0]["microbatches"] for results in (one, two) for case in ("steps", "microbatched")]

    assert counts == [1, 5, 1, 3]
    assert [results["steps"]["steps"][0]["tokens"] for results in (one, two)] == [64, 64]


@pytest.mark.parametrize("world", [1, 2])
def test_export_is_a_model_folder_with_the_trained_weights(
    world: int, folder: Path, oracle: tuple[Any, dict[str, torch.Tensor]]
) -> None:
    """from_pretrained reads what save_weights wrote, and finds the weights of the plain loop after three steps."""
    model = AutoModelForCausalLM.from_pretrained(folder / f"export-{world}", dtype=torch.float32)

    weights = dict(model.named_parameters())
    assert weights.keys() == oracle[1].keys()
    for name, expected in oracle[1].items():
        torch.testing.assert_close(weights[name].detach(), expected, rtol=1e-3, atol=1e-4, msg=name)
    assert (folder / f"export-{world}" / "tokenizer_config.json").is_file()
    assert not list(folder.glob("*.partial"))


def test_value_heads_train_alike_and_are_saved(one: Results, two: Results, folder: Path) -> None:
    """A critic starts at zero, learns the same on one and two ranks, and is a folder transformers knows."""
    for first, second in zip(one["value_head"]["steps"], two["value_head"]["steps"], strict=True):
        assert first["loss"] == pytest.approx(second["loss"], rel=1e-5)
    model, info = AutoModelForTokenClassification.from_pretrained(folder / "critic-2", output_loading_info=True)

    assert not info["missing_keys"]
    assert float(model.score.weight.detach().abs().max()) > 0.0


def test_bfloat16_keeps_float32_masters_and_sends_bfloat16(one: Results, two: Results) -> None:
    """The loss is close to float32's but not equal; moments are float32."""
    for results in (one, two):
        assert results["half_precision"]["local_dtype"] == "torch.float32"
        exact, half = results["steps"]["steps"][0]["loss"], results["half_precision"]["steps"][0]["loss"]
        assert exact != half
        assert exact == pytest.approx(half, abs=0.02)


@pytest.mark.parametrize("world", [1, 2])
def test_resume_is_exact(world: int, folder: Path) -> None:
    """After loading, the next step and the weights after it are the same bits, and the version is back."""
    for rank in range(world):
        resume = _results(folder, world, rank)["resume"]

        assert resume["expected"] == resume["actual"]
        assert resume["same_weights"]
        assert resume["version"] == 7
        assert resume["other_model"][0] == "CheckpointError"


def test_one_rank_reads_what_two_ranks_saved(one: Results, two: Results) -> None:
    """Resharding moves rows, not values; the optimizer's moments came along, so the next step agrees."""
    assert one["reshard"]["weights"] == two["reshard"]["weights"]
    assert len(one["reshard"]["weights"]) == 24
    assert one["reshard"]["next"]["loss"] == pytest.approx(two["reshard"]["next"]["loss"], rel=1e-5)
    assert one["reshard"]["next"]["loss"] == pytest.approx(one["steps"]["steps"][1]["loss"], rel=1e-5)


def test_fingerprints_sent_are_those_of_the_starting_weights(one: Results, folder: Path) -> None:
    """`unchanged` below compares something: sent fingerprints are those of real tensors under folder names."""
    model = AutoModelForCausalLM.from_pretrained(folder / "export-1", dtype=torch.float32)
    names = {name for name, _ in model.named_parameters()}

    assert set(one["reshard"]["weights"]) == names
    assert fingerprint(model.model.norm.weight) not in one["reshard"]["weights"].values()


@pytest.mark.parametrize(
    ("case", "kind", "says"),
    [
        ("too_long", "BatchError", "sequence 0 has 32 tokens, the limit is 20"),
        ("too_long_forward", "BatchError", "sequence 0 has 32 tokens, the limit is 20"),
        ("nothing", "BatchError", "divided by 0.0"),
        ("wrong_head", "CapabilityError", "cannot give values"),
        ("spoiled", "FingerprintMismatch", "9 of 24 tensors of version 2"),
        ("disk", "StorageError", "/proc/nowhere/model"),
        ("layout", "LayoutError", "no pipeline parallelism"),
    ],
)
def test_an_error_on_one_rank_is_an_error_on_all(case: str, kind: str, says: str, folder: Path) -> None:
    """The failing rank's reason reaches every rank, before anyone waits in a collective."""
    for world in (1, 2):
        for rank in range(world):
            name, text = _results(folder, world, rank)["refusals"][case]

            assert name == kind
            assert says in text


def test_refused_and_not_finite_steps_change_nothing(one: Results, two: Results) -> None:
    """After all refusals and a nan on one rank only, weights are the same bits and training goes on as new."""
    for results in (one, two):
        assert results["refusals"]["nan"] is False
        assert results["refusals"]["unchanged"]
        assert results["refusals"]["aborted"]
        assert results["refusals"]["steps"][0]["loss"] == pytest.approx(results["steps"]["steps"][0]["loss"], rel=1e-5)


def test_a_frozen_role_scores_and_refuses_to_train(folder: Path) -> None:
    """Shards add up to the whole batch's log-probs; train_step says the role has no optimizer."""
    whole = _results(folder, 1, 0)["frozen"]
    shares = [_results(folder, 2, rank)["frozen"] for rank in range(2)]

    assert sum(share["sum"] for share in shares) == pytest.approx(whole["sum"], rel=1e-5)
    assert whole["train"][0] == "TrainError"


def _results(folder: Path, world: int, rank: int) -> Results:
    results: Results = json.loads((folder / f"results-{world}-{rank}.json").read_text())
    return results
