"""The Megatron engine on one, two and four real ranks, against a bare PyTorch loop over unpacked sequences."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import frozen
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification

from areal_core.testing.batches import make_batch
from areal_core.testing.models import make_tiny_model
from areal_core.testing.ranks import run_ranks
from areal_core.training.experts import obey_routes
from areal_core.weights.fingerprint import fingerprint

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]  # two and four real ranks, many layouts in one start
Results = dict[str, dict[str, Any]]
SCRIPT = Path(__file__).with_name("ranks.py")
WORLDS = (4, 2, 1)
"""In this order: later ones resume what earlier ones saved."""
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16}
NOT_CASES = {"frozen_role", "uneven", "value_head", "half_precision", "away", "resume", "reshard", "refusals"}


def make_models(path: Path) -> None:
    """Write the models every world trains, and some that must be refused. 66 rows make unequal shards, and 65 parts."""
    make_tiny_model(path / "qwen3", vocab_size=66)
    make_tiny_model(path / "qwen2", kind="qwen2", vocab_size=66, tied=False, layers=4, kv_heads=4)
    make_tiny_model(path / "llama", kind="llama", vocab_size=66, tied=False)
    make_tiny_model(path / "moe", kind="qwen3_moe", vocab_size=66, tied=False)
    make_tiny_model(path / "odd", vocab_size=65)
    make_tiny_model(path / "tied", layers=4, vocab_size=65)
    make_tiny_model(path / "odd_heads", heads=3, kv_heads=3, hidden=48, layers=3)
    for name, source, changes in (
        ("odd_experts", "moe", {"num_local_experts": 3, "num_experts": 3}),
        ("unknown", "llama", {"model_type": "granite", "architectures": ["GraniteForCausalLM"]}),
        ("biased", "llama", {"attention_bias": True}),
        ("stretched", "llama", {"rope_parameters": YARN}),
        ("mixed", "llama", {"vocab_size": 64}),
        ("torn", "llama", {}),
    ):
        shutil.copytree(path / source, path / name)
        config = json.loads((path / name / "config.json").read_text())
        (path / name / "config.json").write_text(json.dumps({**config, **changes}))
    weights = path / "torn" / "model.safetensors"
    save_file({name: each for name, each in load_file(weights).items() if ".1." not in name}, weights)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run all cases on four ranks, then on two, then on one."""
    path = tmp_path_factory.mktemp("megatron")
    make_models(path)
    for world in WORLDS:
        run_ranks(SCRIPT, path, world, limit_s=1500)
    return path


@frozen(kw_only=True, eq=False)
class Oracle:
    """Three steps with transformers, torch.optim and one sequence at a time, and what they began with."""

    logprobs: list[float]
    entropy: list[float]
    steps: list[tuple[float, float]]
    gradients: dict[str, Tensor]
    weights: dict[str, Tensor]


@pytest.fixture(scope="module")
def oracles(folder: Path) -> dict[str, Oracle]:
    found = {model: _oracle(folder / model) for model in ("qwen3", "qwen2", "llama", "moe", "odd", "tied")}
    return {**found, "routed": _oracle(folder / "moe", recorded=True)}


@pytest.mark.parametrize("world", WORLDS)
def test_scores_are_those_of_transformers(world: int, folder: Path, oracles: dict[str, Oracle]) -> None:
    """Log-probs and entropy of every token, on every rank, in every layout."""
    batch = _batch()
    for rank in range(world):
        for name, case in _cases(folder, world, rank).items():
            index = _tokens_of(batch.cu_seqlens.tolist(), case["rows"])
            for column in ("logprobs", "entropy"):
                expected = torch.tensor(getattr(oracles[case["oracle"]], column))[index]
                torch.testing.assert_close(
                    torch.tensor(case[column]), expected, rtol=1e-4, atol=1e-5, msg=f"{column} of {name} on {rank}"
                )


@pytest.mark.parametrize("world", WORLDS)
def test_steps_are_those_of_a_plain_loop(world: int, folder: Path, oracles: dict[str, Oracle]) -> None:
    """Law 6: loss and gradient norm do not depend on layout, schedule, recomputation or micro-batches."""
    for name, case in _cases(folder, world, 0).items():
        for number, ((loss, norm), step) in enumerate(zip(oracles[case["oracle"]].steps, case["steps"], strict=True)):
            assert step["loss"] == pytest.approx(loss, rel=1e-4, abs=1e-5), f"{name}, step {number}"
            assert step["grad_norm"] == pytest.approx(norm, rel=1e-4), f"{name}, step {number}"
            assert step["stepped"]
            assert step["tokens"] == 64


@pytest.mark.parametrize("world", WORLDS)
def test_every_gradient_is_that_of_a_plain_loop(world: int, folder: Path, oracles: dict[str, Oracle]) -> None:
    """Norms of queries and keys under t, experts under e, tied embeddings under p, stages that take turns."""
    for name, case in _cases(folder, world, 0).items():
        gradients = load_file(folder / f"gradients-{world}-{name.replace('/', '-')}.safetensors")
        expected = oracles[case["oracle"]].gradients
        assert gradients.keys() == expected.keys(), name
        for tensor, gradient in gradients.items():
            scale = float(expected[tensor].abs().max())
            gap = float((gradient - expected[tensor]).abs().max())
            assert gap <= 1e-4 * scale, f"{name}: {tensor} differs by {gap:.3g} of {scale:.3g}"


@pytest.mark.parametrize("world", WORLDS)
def test_export_is_a_model_folder_with_the_trained_weights(
    world: int, folder: Path, oracles: dict[str, Oracle]
) -> None:
    """from_pretrained reads what save_weights wrote, and finds the weights of the plain loop after three steps."""
    for name, case in _cases(folder, world, 0).items():
        path = folder / f"export-{world}-{name.replace('/', '-')}"
        weights = load_file(path / "model.safetensors")
        expected = oracles[case["oracle"]].weights
        assert weights.keys() == expected.keys(), name
        for tensor, value in expected.items():
            # AdamW makes steps of 1e-2 of gradients of 5e-8 too, whose last digits depend on the order of sums.
            torch.testing.assert_close(weights[tensor], value, rtol=1e-3, atol=1e-3, msg=f"{tensor} of {name}")
        assert (path / "tokenizer_config.json").is_file()
    model, info = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), type(model)
    assert not list(folder.glob("*.partial"))


@pytest.mark.parametrize("world", WORLDS)
def test_weights_go_in_and_out_bit_for_bit(world: int, folder: Path) -> None:
    """What is sent before the first step are the tensors of the folder, whatever the layout, tied or not."""
    for name, case in _cases(folder, world, 0).items():
        file = load_file(folder / case["model"] / "model.safetensors")

        assert case["sent"] == {tensor: fingerprint(value) for tensor, value in file.items()}, name


def test_every_rank_reports_the_same(folder: Path) -> None:
    """Reports are reduced: every rank says what rank 0 says, to the bit."""
    for world in WORLDS:
        first = _cases(folder, world, 0)
        for rank in range(1, world):
            for name, case in _cases(folder, world, rank).items():
                assert first[name]["steps"] == case["steps"], f"{name} on rank {rank}"


def test_cases_cut_what_they_say_they_cut(folder: Path) -> None:
    """The invariance above compares different ways of cutting, not the same one twice."""
    counts = {
        name: case["steps"][0]["microbatches"] for world in WORLDS for name, case in _cases(folder, world, 0).items()
    }
    places = [case["place"] for case in (_cases(folder, 4, rank)["qwen3/t2p2"] for rank in range(4))]

    assert counts["qwen3/d2"] == 1
    assert counts["many"] == counts["many_p"] == 4
    assert counts["interleaved_d"] == 2
    assert [(place["p"], place["t"]) for place in places] == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_masters_and_moments_that_are_shared_lie_on_one_rank_each(folder: Path) -> None:
    """With `distributed_optimizer` the ranks' moments add up to two for each number of the model, not to two each."""
    numbers = sum(each.numel() for each in load_file(folder / "odd" / "model.safetensors").values())
    ranks = [_cases(folder, 2, rank) for rank in range(2)]

    assert sum(cases["odd/shared_d2"]["moments"] for cases in ranks) == 2 * numbers
    assert sum(cases["qwen3/d2"]["moments"] for cases in ranks) > 2 * numbers


def test_the_norm_needs_no_marks_of_megatron(folder: Path) -> None:
    """Weights that are not initialised, but read, never get `tensor_model_parallel`, by which Megatron counts a norm.

    Counted so it would leave out every cut weight of all tensor ranks but the first. Here boxes tell who counts, and
    the norms above are whole.
    """
    marked = {name for world in WORLDS for name, case in _cases(folder, world, 0).items() if case["marked"]}

    assert not marked


@pytest.mark.parametrize("world", WORLDS)
def test_a_rank_without_data_takes_part(world: int, folder: Path, oracles: dict[str, Oracle]) -> None:
    """All sequences on one data rank give the same steps."""
    steps = _results(folder, world, 0)["uneven"]["steps"]

    for (loss, norm), step in zip(oracles["qwen3"].steps, steps, strict=True):
        assert step["loss"] == pytest.approx(loss, rel=1e-4)
        assert step["grad_norm"] == pytest.approx(norm, rel=1e-4)


@pytest.mark.parametrize("world", WORLDS)
def test_training_that_is_moved_away_and_back_keeps_its_bits(world: int, folder: Path) -> None:
    """Every rank frees its parts of weights and moments, and nothing else changes; a call in between says so."""
    for rank in range(world):
        for name, found in _results(folder, world, rank)["away"].items():
            assert found["equal"], name
            assert found["held"] > found["left"] == 0, name
            assert found["call"][0] == "TrainError" and "call onload first" in found["call"][1]


def test_recorded_routes_are_others_than_the_routers_own(oracles: dict[str, Oracle]) -> None:
    """So the cases above would fail if a layout dropped them."""
    gap = (torch.tensor(oracles["routed"].logprobs) - torch.tensor(oracles["moe"].logprobs)).abs().max()

    assert float(gap) > 0.1


def test_value_heads_train_alike_and_are_saved(folder: Path) -> None:
    """A critic starts at zero, learns the same in every layout, and is a folder transformers knows."""
    expected = _results(folder, 1, 0)["value_head"]["d1"]
    for world in (2, 4):
        for layout, steps in _results(folder, world, 0)["value_head"].items():
            for first, second in zip(expected, steps, strict=True):
                assert second["loss"] == pytest.approx(first["loss"], rel=1e-4), layout
                assert second["grad_norm"] == pytest.approx(first["grad_norm"], rel=1e-4), layout
            model, info = AutoModelForTokenClassification.from_pretrained(
                folder / f"critic-{world}-{layout}", output_loading_info=True
            )
            assert not info["missing_keys"]
            assert float(model.score.weight.detach().abs().max()) > 0.0


def test_bfloat16_keeps_float32_masters(folder: Path) -> None:
    """The loss is close to float32's but not equal; moments are float32."""
    exact = _results(folder, 1, 0)["qwen3/d1"]["steps"][0]["loss"]
    for world in WORLDS:
        halves = _results(folder, world, 0)["half_precision"]
        assert halves.pop("dtypes") == ["torch.float32"]
        for layout, half in halves.items():
            assert half["loss"] != exact
            assert half["loss"] == pytest.approx(exact, abs=0.05), layout


@pytest.mark.parametrize("world", WORLDS)
def test_resume_is_exact(world: int, folder: Path) -> None:
    """After loading, the next step and the weights after it are the same bits, and the version is back."""
    for rank in range(world):
        resume = _results(folder, world, rank)["resume"]
        assert resume.pop("other_model")[0] == "CheckpointError"
        assert resume.pop("unchanged")
        for name, case in resume.items():
            assert case["expected"] == case["actual"], name
            assert case["same_weights"], name
            assert case["version"] == 7, name


@pytest.mark.parametrize("world", WORLDS)
def test_a_state_of_one_layout_resumes_in_another(world: int, folder: Path, oracles: dict[str, Oracle]) -> None:
    """Weights and moments came along, so the two steps after it are the second and third of the plain loop."""
    for source, steps in _results(folder, world, 0)["reshard"].items():
        expected = oracles[source.split("-")[1]].steps[1:]
        for (loss, norm), step in zip(expected, steps, strict=True):
            assert step["loss"] == pytest.approx(loss, rel=1e-4, abs=1e-5), source
            assert step["grad_norm"] == pytest.approx(norm, rel=1e-4), source


@pytest.mark.parametrize(
    ("case", "kind", "says"),
    [
        ("too_long", "BatchError", "sequence 0 has 32 tokens, the limit is 20"),
        ("wrong_head", "CapabilityError", "cannot give values"),
        ("spoiled", "FingerprintMismatch", "9 of 24 tensors of version 2"),
        ("disk", "StorageError", "/proc/nowhere/model"),
    ],
)
def test_an_error_on_one_rank_is_an_error_on_all(case: str, kind: str, says: str, folder: Path) -> None:
    """The failing rank's reason reaches every rank, before anyone waits in a collective."""
    for world in WORLDS:
        for rank in range(world):
            name, text = _results(folder, world, rank)["refusals"][case]

            assert name == kind
            assert says in text


@pytest.mark.parametrize(
    ("case", "kind", "says"),
    [
        ("ranks", "LayoutError", "2 ranks for a layout of 4"),
        ("heads", "LayoutError", "t2 does not divide 3 key and value heads"),
        ("context_heads", "LayoutError", "c2 does not divide 3 attention heads"),
        ("layers", "LayoutError", "p2 does not divide 3 layers"),
        ("virtual_layers", "LayoutError", "4 stages do not divide 2 layers"),
        ("no_pipeline", "LayoutError", "virtual: 2 needs a pipeline"),
        ("experts", "LayoutError", "e2 is for models with experts"),
        ("too_many_experts", "LayoutError", "e4 does not divide 2 ranks of a stage"),
        ("odd_experts", "LayoutError", "e2 does not divide 3 experts"),
        ("family", "ModelError", "no model of type 'granite'"),
        ("biases", "ModelError", "biases on all linear layers"),
        ("positions", "ModelError", "rotary positions of type 'yarn'"),
        ("missing_shard", "ModelError", "missing: model.layers.1."),
        ("other_weights", "ModelError", "has the shape [66, 64]"),
        ("adapter", "CapabilityError", "not an adapter of rank 2"),
        ("routes", "BatchError", "names an expert there is not"),
        ("no_experts", "BatchError", "the model has no experts"),
        ("no_model", "ModelError", "does not exist"),
    ],
)
def test_what_cannot_be_is_refused_on_every_rank(case: str, kind: str, says: str, folder: Path) -> None:
    """Before anything loads, with what does not fit and what would."""
    for rank in range(2):
        name, text = _results(folder, 2, rank)["refusals"][case]

        assert name == kind, text
        assert says in text


def test_refused_and_not_finite_steps_change_nothing(folder: Path) -> None:
    """After all refusals and a nan on one rank only, weights are the same bits."""
    for world in WORLDS:
        refusals = _results(folder, world, 0)["refusals"]
        assert refusals["nan"] is False
        assert refusals["unchanged"]


def test_an_error_in_scoring_ends_the_step_on_every_stage(folder: Path, oracles: dict[str, Oracle]) -> None:
    """The stage that scores raises its own, the other says where to look; nothing of the step is left for the next."""
    first, last = (_results(folder, 2, rank)["refusals"] for rank in range(2))

    assert first["score"][0] == "TrainError"
    assert "could not be scored" in first["score"][1]
    assert last["score"][0] == "BatchError"
    for refusals in (first, last):
        loss, norm = oracles["qwen3"].steps[0]
        assert refusals["after_score"]["loss"] == pytest.approx(loss, rel=1e-4)
        assert refusals["after_score"]["grad_norm"] == pytest.approx(norm, rel=1e-4)


def test_a_frozen_role_scores_and_refuses_to_train(folder: Path) -> None:
    """Shards add up to the whole batch's log-probs; train_step says the role has no optimizer."""
    whole = _results(folder, 1, 0)["frozen_role"]
    for world in (2, 4):
        shares = [_results(folder, world, rank)["frozen_role"] for rank in range(world)]
        once = {share["place"]["d"]: share["sum"] for share in shares}

        assert sum(once.values()) == pytest.approx(whole["sum"], rel=1e-5)
    assert whole["train"][0] == "TrainError"


def _cases(folder: Path, world: int, rank: int) -> Results:
    return {name: each for name, each in _results(folder, world, rank).items() if name not in NOT_CASES}


def _tokens_of(ends: list[int], rows: list[int]) -> list[int]:
    return [token for row in rows for token in range(ends[row], ends[row + 1])]


def _batch() -> Any:
    return make_batch([(2, 3), (1, 5), (4, 9), (3, 1), (2, 12), (6, 2), (1, 1), (5, 7)])


def _routed(batch: Any) -> Any:
    """Return a batch with the experts that `ranks.py` gives its tokens."""
    noise = torch.rand(batch.num_tokens, 2, 4, generator=torch.Generator().manual_seed(4))
    routes = noise.argsort(-1)[..., :2].to(torch.int32).contiguous()
    routes[::5] = -1
    return batch.with_tokens(routed_experts=routes)


def _oracle(path: Path, *, recorded: bool = False) -> Oracle:
    """Any route is the core's to move into transformers' routers, which `tests/training` proves."""
    batch = _routed(_batch()) if recorded else _batch()
    advantages = torch.randn(batch.num_tokens, generator=torch.Generator().manual_seed(3))
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    if recorded:
        obey_routes(model)
    adam = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    steps: list[tuple[float, float]] = []
    scores = torch.zeros(2, batch.num_tokens)
    gradients: dict[str, Tensor] = {}
    for number in range(3):
        loss = torch.zeros(())
        for start, end in zip(batch.cu_seqlens[:-1].tolist(), batch.cu_seqlens[1:].tolist(), strict=True):
            ids, mask = batch.tokens["input_ids"][start:end], batch.tokens["loss_mask"][start:end][1:]
            routes = {}
            if recorded:  # row t is of the pass over token t - 1
                column = batch.tokens["routed_experts"][start:end].to(torch.int64)
                routes["routes"] = torch.cat([column[1:], torch.full_like(column[:1], -1)])
            log_p = model(input_ids=ids[None], **routes).logits[0, :-1].log_softmax(-1)
            entropy = -(log_p.exp() * log_p).sum(-1)
            chosen = log_p.gather(1, ids[1:, None])[:, 0]
            if number == 0:
                scores[:, start + 1 : end] = torch.stack([chosen, entropy]).detach() * mask
            gain = advantages[start:end][1:] * chosen + 0.01 * entropy
            loss = loss - gain[mask].sum() / batch.tokens["loss_mask"].sum()
        loss.backward()
        if number == 0:
            gradients = _as_folder(model, {name: each.grad for name, each in model.named_parameters()})
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        steps.append((float(loss.detach()), float(norm)))
        adam.step()
        adam.zero_grad()
    weights = _as_folder(model, {name: each.detach() for name, each in model.named_parameters()})
    return Oracle(
        logprobs=scores[0].tolist(), entropy=scores[1].tolist(), steps=steps, gradients=gradients, weights=weights
    )


def _as_folder(model: Any, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return parameters under the names of a folder; transformers fuses gate and up of all experts. Any: a model."""
    from areal_core.training.hf import folder_tensors

    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        found |= {key: each.clone() for key, each in folder_tensors(model, name, tensor).items()}
    return found


def _results(folder: Path, world: int, rank: int) -> Results:
    results: Results = json.loads((folder / f"results-{world}-{rank}.json").read_text())
    return results
