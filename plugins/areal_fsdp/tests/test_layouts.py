"""Tensor and context ranks, replicas, compiled layers and experts, on two and four real ranks, against a plain loop."""

from __future__ import annotations

import importlib
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import (
    AutoModelForCausalLM,
    AutoModelForTokenClassification,
    GPT2Config,
    GraniteConfig,
    LlamaConfig,
)

from areal_torch.testing.axes.program import LEFT_S
from areal_torch.testing.models import make_tiny_model
from areal_torch.testing.ranks import run_ranks


def _script(name: str) -> Any:
    """Import a script beside this file, which finds its neighbours. Any: a module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parent))
        return importlib.import_module(name)


pytestmark = pytest.mark.slow  # two and four real ranks, many layouts in one start
Results = dict[str, Any]
CASES, RELAYS, full_batch = (getattr(_script("layout_ranks"), name) for name in ("CASES", "RELAYS", "full_batch"))
SCRIPT = Path(__file__).with_name("layout_ranks.py")
TRAINED = [(world, name) for world, cases in CASES.items() for name in cases]


def write_model(path: Path, config: Any) -> None:
    """Write a tiny model of a family that `make_tiny_model` has not, norms and biases away from neutral."""
    torch.manual_seed(5)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(path)


def write_models(folder: Path) -> None:
    """Write what the cases name: 66 tokens are halved into 33, which two data ranks cannot halve again; 65 into two."""
    make_tiny_model(folder / "qwen3", vocab_size=66)
    make_tiny_model(folder / "qwen2", kind="qwen2", vocab_size=66)
    make_tiny_model(folder / "experts", kind="qwen3_moe", vocab_size=66, tied=False)
    make_tiny_model(folder / "odd", vocab_size=65)
    make_tiny_model(folder / "three", heads=3, kv_heads=3, hidden=48)
    sizes = {"vocab_size": 66, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": 40, "eos_token_id": 1}
    write_model(folder / "biases", LlamaConfig(**sizes, **heads, attention_bias=True, mlp_bias=True))
    write_model(folder / "granite", GraniteConfig(**sizes, **heads, logits_scaling=2.0, tie_word_embeddings=True))
    write_model(folder / "gpt2", GPT2Config(vocab_size=66, n_embd=32, n_layer=1, n_head=4))


def plain_loop(path: Path) -> tuple[list[tuple[float, float]], dict[str, torch.Tensor], float]:
    """Take three steps with transformers, torch.optim and one sequence at a time.

    Returns:
        Loss and gradient norm of each step; the first moments after the first, and the weights; log-probs at the end.
    """
    batch = full_batch()
    advantages = batch.tokens["advantages"]
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    adam = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1, eps=1e-3)
    reports, kept = [], {}
    for step in range(4):
        loss, scored = torch.zeros(()), 0.0
        for start, end in zip(batch.cu_seqlens[:-1].tolist(), batch.cu_seqlens[1:].tolist(), strict=True):
            ids, mask = batch.tokens["input_ids"][start:end], batch.tokens["loss_mask"][start:end][1:]
            log_p = model(input_ids=ids[None]).logits[0, :-1].log_softmax(-1)
            own = log_p.gather(1, ids[1:, None])[:, 0]
            gain = advantages[start:end][1:] * own + 0.01 * -(log_p.exp() * log_p).sum(-1)
            loss = loss - gain[mask].sum() / batch.tokens["loss_mask"].sum()
            scored += float(own.detach()[mask].double().sum())
        if step == 3:
            break
        loss.backward()
        reports.append((float(loss.detach()), float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0))))
        adam.step()
        adam.zero_grad()
        if step == 0:
            kept = {f"exp_avg/{name}": adam.state[p]["exp_avg"].clone() for name, p in model.named_parameters()}
    kept |= {f"weights/{name}": p.detach().clone() for name, p in model.named_parameters()}
    return reports, kept, scored


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run all cases on two, four and one rank, in seven processes."""
    path = tmp_path_factory.mktemp("layouts")
    write_models(path)
    oracles = {}
    for model in ("qwen3", "qwen2", "experts", "biases", "granite", "odd"):
        reports, tensors, scored = plain_loop(path / model)
        save_file(tensors, path / f"oracle-{model}.safetensors")
        oracles[model] = {"steps": reports, "scored": scored}
    (path / "oracles.json").write_text(json.dumps(oracles))
    for world in (2, 4, 1):
        run_ranks(SCRIPT, path, world, limit_s=900)
    return path


@pytest.mark.parametrize(("world", "case"), TRAINED)
def test_a_layout_computes_what_one_rank_computes(world: int, case: str, folder: Path) -> None:
    """Law 6: loss and norm of three steps, every gradient of the first and all weights are the plain loop's."""
    settings = CASES[world][case]
    oracle = json.loads((folder / "oracles.json").read_text())[settings.model]

    for rank in range(world):
        found = _results(folder, world, rank)[case]
        for (loss, norm), step in zip(oracle["steps"], found["steps"], strict=True):
            assert step["loss"] == pytest.approx(loss, rel=3e-5)
            assert step["grad_norm"] == pytest.approx(norm, rel=1e-4)
            assert step["stepped"] and step["tokens"] == 64
        wrong = {name: gap for name, gap in found["moments"].items() if gap > 1e-4}
        assert not wrong, f"gradients on rank {rank}"
        assert max(found["weights"].values()) < 1e-3
        assert found["copies"], "ranks that hold the same part hold other bits"


@pytest.mark.parametrize(("world", "case"), TRAINED)
def test_scores_after_training_are_those_of_the_plain_loop(world: int, case: str, folder: Path) -> None:
    """Every data rank scores its own shard, ranks that share it alike; shares add up."""
    settings = CASES[world][case]
    oracle = json.loads((folder / "oracles.json").read_text())[settings.model]
    found = [_results(folder, world, rank)[case]["scored"] for rank in range(world)]

    data = max(1, len(set(found)))
    assert sum(found) * data / world == pytest.approx(oracle["scored"], rel=1e-4)


@pytest.mark.parametrize(("world", "case"), TRAINED)
def test_every_rank_reports_the_same(world: int, case: str, folder: Path) -> None:
    """Reports are reduced: all ranks say what rank 0 says, to the bit."""
    first, *others = (_results(folder, world, rank)[case]["steps"] for rank in range(world))

    assert all(other == first for other in others)


def test_small_microbatches_are_several(folder: Path) -> None:
    """The cases in pieces cut the batch, and cut it as far as they should."""
    counts = {case: _results(folder, 2, 0)[case]["steps"][0]["microbatches"] for case in CASES[2]}

    assert (counts["t2"], counts["t2 in pieces"], counts["c2 in pieces"]) == (1, 5, 5)


@pytest.mark.parametrize("name", ["q_norm", "k_norm"])
def test_norms_of_heads_are_trained_by_the_heads_of_all_ranks(name: str, folder: Path) -> None:
    """The trap of tensor ranks: each has the norm but applies it to its own heads, so gradients must be added up."""
    for world, case in ((2, "t2"), (2, "experts t2"), (4, "d2t2"), (4, "c2t2 in pieces")):
        moments = _results(folder, world, 0)[case]["moments"]

        assert moments[f"model.layers.0.self_attn.{name}.weight"] < 1e-4, case


def test_tensor_ranks_hold_parts_and_all_parameters_are_on_one_mesh(folder: Path) -> None:
    """Matrices, embedding and head are halves, norms whole, and none is left off the mesh of tensor ranks."""
    found = _results(folder, 2, 1)["cut"]
    shapes = {name.removeprefix("model."): part for name, (_, part) in found["shapes"].items()}

    assert found["meshes"] == ["('shards', 'tensor')"]
    assert shapes["embed_tokens.weight"] == [33, 64]
    assert shapes["layers.0.self_attn.q_proj.weight"] == [32, 64]
    assert shapes["layers.0.self_attn.k_proj.weight"] == [16, 64]
    assert shapes["layers.0.self_attn.o_proj.weight"] == [64, 32]
    assert shapes["layers.0.mlp.down_proj.weight"] == [64, 64]
    assert shapes["layers.0.self_attn.q_norm.weight"] == [16]
    assert shapes["layers.1.input_layernorm.weight"] == [64]


def test_buffers_that_no_folder_stores_are_those_of_a_loaded_model(folder: Path) -> None:
    """The model is built without memory; rotary frequencies come from rank 0 like the weights."""
    loaded = AutoModelForCausalLM.from_pretrained(folder / "qwen3").model.rotary_emb.inv_freq
    for rank in range(2):
        assert _results(folder, 2, rank)["cut"]["rotary"] == loaded.tolist()


def test_what_is_sent_is_the_same_in_every_layout(folder: Path) -> None:
    """Names sent are the folder's; after loading one state all layouts send the same bits."""
    expected = set(dict(AutoModelForCausalLM.from_pretrained(folder / "qwen3").named_parameters()))
    for world, cases in CASES.items():
        for case, settings in cases.items():
            if settings.model == "qwen3":
                assert set(_results(folder, world, 0)[case]["exported"]) == expected, case


def test_a_state_goes_from_layout_to_layout(folder: Path) -> None:
    """Law 4: d2, t2, c2, d2t2, c2t2, d4 and one rank hand a state on; none changes a bit, and each trains on.

    Of 65 rows t2 has 33 and 32: what tensor ranks hold unlike many of comes back whole, and nothing else with it.
    """
    stages = [(world, layout) for world in (2, 4, 1) for layout in RELAYS[world]]
    relayed = [_results(folder, world, 0)["relay"][layout] for world, layout in stages]

    for before, after in pairwise(relayed):
        assert before["after"] == after["before"]
        assert before["before"] != before["after"]
    oracle = json.loads((folder / "oracles.json").read_text())["odd"]["steps"]
    for (loss, norm), stage in zip(oracle, relayed, strict=False):
        assert stage["step"]["loss"] == pytest.approx(loss, rel=3e-5)
        assert stage["step"]["grad_norm"] == pytest.approx(norm, rel=1e-4)


def test_critics_train_in_every_layout(folder: Path) -> None:
    """Values over tensor and context ranks learn alike and are saved whole."""
    tensor, context = (_results(folder, 2, 0)[f"values {layout}"]["steps"] for layout in ("t2", "c2"))
    for one, other in zip(tensor, context, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-5)
        assert one["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-4)
    assert tensor[0]["loss"] != tensor[1]["loss"]
    for layout in ("t2", "c2"):
        model, info = AutoModelForTokenClassification.from_pretrained(
            folder / f"critic-{layout}", output_loading_info=True
        )

        assert not info["missing_keys"]
        assert float(model.score.weight.detach().abs().max()) > 0.0


def test_frozen_roles_score_in_every_layout(folder: Path) -> None:
    """Shares of log-probs and entropy add up to one rank's, whoever shares what."""
    (alone,) = _results(folder, 1, 0)["frozen"].values()
    for world in (2, 4):
        answers = [_results(folder, world, rank)["frozen"] for rank in range(world)]
        for layout in RELAYS[world]:
            shares = {answer[layout][2]: answer[layout][:2] for answer in answers}
            for answer in answers:
                assert answer[layout][:2] == shares[answer[layout][2]]

            assert sum(share[0] for share in shares.values()) == pytest.approx(alone[0], rel=1e-5), layout
            assert sum(share[1] for share in shares.values()) == pytest.approx(alone[1], rel=1e-5), layout


def test_bfloat16_layers_are_near_float32(folder: Path) -> None:
    """Over tensor and context ranks too; not equal, or nothing was computed in it."""
    exact = json.loads((folder / "oracles.json").read_text())["qwen3"]["steps"][0][0]
    for layout in ("t2", "c2"):
        half = _results(folder, 2, 0)[f"halves {layout}"]["steps"][0]["loss"]

        assert half != pytest.approx(exact, rel=1e-5)
        assert half == pytest.approx(exact, abs=0.02)


@pytest.mark.parametrize("world", [2, 4])
def test_a_rank_that_raises_alone_keeps_nobody_beyond_the_timeout(world: int, folder: Path) -> None:
    """In the middle of a step, whichever axis the others wait on: groups of every mesh give up when the run says so."""
    for rank in range(world):
        for layout, found in _results(folder, world, rank)["left"].items():
            assert found["raises"] == (found["error"] == "BatchError"), f"{layout} on rank {rank}: {found}"
            assert found["error"] and found["seconds"] < 3 * LEFT_S, f"{layout} on rank {rank}: {found}"


@pytest.mark.parametrize(
    ("case", "kind", "says"),
    [
        ("no plan", "ModelError", "GPT2LMHeadModel cannot be sharded over tensor ranks"),
        ("heads c", "LayoutError", "c2 does not divide 3 attention heads"),
        ("heads t", "LayoutError", "t2 does not divide 3 attention heads"),
        ("replicas", "LayoutError", "3 replicas do not divide d2"),
        ("pipeline", "LayoutError", "no pipeline parallelism"),
        ("compiled", "CapabilityError", "layers are not compiled over tensor ranks"),
    ],
)
def test_what_does_not_fit_is_refused_on_every_rank(case: str, kind: str, says: str, folder: Path) -> None:
    """Before any weight is read, and nobody waits for another."""
    for rank in range(2):
        name, text = _results(folder, 2, rank)["refusals"][case]

        assert name == kind
        assert says in text


def _results(folder: Path, world: int, rank: int) -> Results:
    results: Results = json.loads((folder / f"layouts-{world}-{rank}.json").read_text())
    return results
