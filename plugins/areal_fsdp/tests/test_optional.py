"""Adapters and images on one, two and four real ranks, against a plain loop."""

from __future__ import annotations

import importlib
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig

from areal_core.contract.train import TrainSpec
from areal_core.weights.tensors import fingerprint
from areal_torch import lora
from areal_torch.testing.axes.oracle import Oracle
from areal_torch.testing.models import WITH_IMAGES, make_tiny_model
from areal_torch.testing.ranks import run_ranks
from areal_torch.testing.serving import model_of


def _script(name: str) -> Any:
    """Import a script beside this file, which finds its neighbours. Any: a module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parent))
        return importlib.import_module(name)


pytestmark = pytest.mark.timeout(900)  # the first test of each world waits for all its layouts
Results = dict[str, Any]
SCRIPT = Path(__file__).with_name("optional_ranks.py")
_OF_SCRIPT = _script("optional_ranks")
ADAPTER, PROGRAMS, RELAYS, SMOOTH, batch_of = (
    getattr(_OF_SCRIPT, name) for name in ("ADAPTER", "PROGRAMS", "RELAYS", "SMOOTH", "batch_of")
)
WORLDS = [1, pytest.param(2, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.slow)]
"""One rank states what is claimed; two and four take a start each, of many layouts."""
MODELS = {"adapter": "qwen3", "biases": "biases", "images": "seeing"}
"""By oracle."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run all cases on one rank."""
    path = tmp_path_factory.mktemp("optional")
    make_tiny_model(path / "qwen3", vocab_size=66)
    make_tiny_model(path / "seeing", kind=WITH_IMAGES)
    sizes = {"vocab_size": 66, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": 40, "eos_token_id": 1}
    torch.manual_seed(5)
    config = LlamaConfig(**sizes, **heads, attention_bias=True, mlp_bias=True)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(path / "biases")
    oracles = {name: plain_loop(path, name) for name in MODELS}
    (path / "oracles.json").write_text(json.dumps(oracles))
    run_ranks(SCRIPT, path, 1, limit_s=800)
    return path


@pytest.fixture(scope="module")
def two(folder: Path) -> None:
    """Run the cases of two ranks after those of one."""
    run_ranks(SCRIPT, folder, 2, limit_s=800)


@pytest.fixture(scope="module")
def four(two: None, folder: Path) -> None:
    """Run the cases of four ranks after those of two."""
    run_ranks(SCRIPT, folder, 4, limit_s=800)


@pytest.fixture
def results(request: pytest.FixtureRequest, folder: Path) -> Any:
    """Return what each rank of so many wrote, once they ran. Any: a function."""

    def read(world: int) -> list[Results]:
        if world > 1:
            request.getfixturevalue({2: "two", 4: "four"}[world])
        return [json.loads((folder / f"optional-{world}-{rank}.json").read_text()) for rank in range(world)]

    return read


def plain_loop(path: Path, name: str) -> dict[str, Any]:
    """Take three steps with transformers, torch.optim and one sequence at a time; keep the moments after two.

    Only what computes an adapted layer is the kit's.
    """
    folder = str(path / MODELS[name])
    model = model_of(path / MODELS[name], torch.float32)
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    batch = batch_of(name)
    if name != "images":
        lora.add_adapters(model, TrainSpec(role="actor", model_path=folder, lora=ADAPTER, optimizer=SMOOTH))
    held = lora.select_trained(model, frozen=False)
    adam = torch.optim.AdamW(list(held.values()), lr=SMOOTH.lr, weight_decay=SMOOTH.weight_decay, eps=SMOOTH.eps)
    steps, kept = [], {}
    for step in range(4):
        loss, scored = torch.zeros(()), 0.0
        for row in range(batch.num_sequences):
            one = batch.select([row])
            ids, mask = one.tokens["input_ids"], one.tokens["loss_mask"][1:]
            beside = {}
            if name == "images" and one.tokens["image_tokens"].any():
                beside = {name: media.rows for name, media in one.media.items()}
                beside["mm_token_type_ids"] = one.tokens["image_tokens"].int()[None]
            log_p = model(input_ids=ids[None], **beside).logits[0, :-1].log_softmax(-1)
            own = log_p.gather(1, ids[1:, None])[:, 0]
            gain = one.tokens["advantages"][1:] * own + 0.01 * -(log_p.exp() * log_p).sum(-1)
            loss = loss - gain[mask].sum() / batch.tokens["loss_mask"].sum()
            scored += float(own.detach()[mask].double().sum())
        if step == 3:
            break
        loss.backward()
        steps.append((float(loss.detach()), float(torch.nn.utils.clip_grad_norm_(list(held.values()), 1.0))))
        adam.step()
        adam.zero_grad()
        if step == 1:
            kept = {f"exp_avg/{key}": adam.state[p]["exp_avg"].clone() for key, p in held.items()}
    kept |= {f"weights/{key}": p.detach().clone() for key, p in held.items()}
    save_file(kept, path / f"oracle-{name}.safetensors")
    return {"steps": steps, "scored": scored, "parameters": num_parameters}


@pytest.mark.parametrize("world", WORLDS)
def test_steps_and_gradients_are_those_of_a_plain_loop(world: int, folder: Path, results: Any) -> None:
    """Law 6: adapters alone have gradients and a norm, on every layout as on one rank."""
    oracles = json.loads((folder / "oracles.json").read_text())
    for rank, found in enumerate(results(world)):
        for name, program in PROGRAMS[world].items():
            oracle, case = oracles[program.oracle], found[name]
            for (loss, norm), step in zip(oracle["steps"], case["steps"], strict=True):
                assert step["loss"] == pytest.approx(loss, rel=3e-5), name
                assert step["grad_norm"] == pytest.approx(norm, rel=1e-4), name
            wrong = {tensor: gap for tensor, gap in case["moments"].items() if not gap <= 1e-4}
            assert not wrong, f"gradients of {name} on rank {rank}"
            assert max(case["weights"].values()) < 1e-4, name
            assert case["copies"], f"ranks that hold the same part hold other bits: {name}"
            assert case["parameters"] == oracle["parameters"], name


@pytest.mark.parametrize("world", WORLDS)
def test_scores_after_training_are_those_of_the_plain_loop(world: int, folder: Path, results: Any) -> None:
    """Shares of data ranks add up, and ranks of one share agree."""
    oracles = json.loads((folder / "oracles.json").read_text())
    answers = results(world)
    for name, program in PROGRAMS[world].items():
        found = [answer[name]["scored"] for answer in answers]
        shares = {answer[name]["scored"] for answer in answers}

        assert sum(found) * len(shares) / world == pytest.approx(oracles[program.oracle]["scored"], rel=1e-4), name
        assert all(answer[name]["steps"] == answers[0][name]["steps"] for answer in answers)


def test_the_oracles_are_others_than_without_the_ability(folder: Path) -> None:
    """A mutant that trains everything is seen: an adapter's gradient is smaller than the model's."""
    oracles = json.loads((folder / "oracles.json").read_text())

    assert oracles["adapter"]["steps"][0][1] < 0.9 * Oracle.of(folder / "qwen3").steps[0][1]


@pytest.mark.slow
def test_a_state_of_an_adapter_goes_from_layout_to_layout(folder: Path, results: Any) -> None:
    """One rank, d2, t2, c2 and d2t2, of other seeds, hand an adapter on bit for bit, train it, send it merged."""
    relayed = [results(world)[0]["relay"][layout] for world in (4, 2, 1) for layout in reversed(RELAYS[world])]

    for after, before in pairwise(relayed):
        assert before["after"] == after["before"]
    base = load_file(folder / "qwen3" / "model.safetensors")
    for stage in relayed:
        changed = {name for name, bits in stage["after"].items() if bits != stage["before"][name]}
        assert changed == {name for name in base if name.removesuffix(".weight").endswith(ADAPTER.targets)}
        assert stage["kept"]


@pytest.mark.parametrize(
    "layout", ["d1", *(pytest.param(layout, marks=pytest.mark.slow) for layout in ("d2", "t2", "c2"))]
)
def test_a_folder_holds_the_merged_model_and_the_adapter_beside_it(layout: str, folder: Path, results: Any) -> None:
    """What was sent, bit for bit; and in PEFT's layout A and B, which amount to merged minus base."""
    stage = results(1 if layout == "d1" else 2)[0]["relay"][layout]
    merged = load_file(folder / f"adapted-{layout}" / "model.safetensors")
    parts = load_file(folder / f"adapted-{layout}" / "adapter" / "adapter_model.safetensors")
    base = load_file(folder / "qwen3" / "model.safetensors")

    assert {name: fingerprint(tensor) for name, tensor in merged.items()} == stage["after"]
    assert len(parts) == 2 * 2 * len(ADAPTER.targets)
    for name in parts:
        layer = name.removeprefix("base_model.model.").partition(".lora_")[0]
        a, b = (parts[f"base_model.model.{layer}.lora_{letter}.weight"] for letter in "AB")
        product = ADAPTER.alpha / ADAPTER.rank * b @ a
        torch.testing.assert_close(merged[f"{layer}.weight"], base[f"{layer}.weight"] + product)
    assert json.loads((folder / f"adapted-{layout}" / "adapter" / "adapter_config.json").read_text())["r"] == 3


@pytest.mark.slow
def test_a_frozen_role_with_an_adapter_scores_as_the_base(results: Any) -> None:
    """B is zero, over data ranks and over tensor ranks."""
    for answer in results(2):
        for layout in ("d2", "t2"):
            adapted, plain = answer[f"frozen {layout}"]["sums"]

            assert adapted == pytest.approx(plain, rel=1e-6)


@pytest.mark.slow
def test_tensor_ranks_cut_what_the_layer_cuts(results: Any) -> None:
    """B with the outputs of q_proj, A with the inputs of o_proj; the other of each is on every rank."""
    for answer in results(2):
        shapes = {name.removeprefix("model.layers.0.self_attn."): shape for name, shape in answer["cut"].items()}

        assert shapes["q_proj.lora_A"] == [3, 64] and shapes["q_proj.lora_B"] == [32, 3]
        assert shapes["o_proj.lora_A"] == [3, 32] and shapes["o_proj.lora_B"] == [64, 3]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "kind", "says"),
    [
        ("no such layer", "PlanError", "name no layer of this model"),
        ("no linear layer", "CapabilityError", "cannot have an adapter"),
        ("state of another", "CheckpointError", "of another model or role"),
    ],
)
def test_what_does_not_fit_is_refused_on_every_rank(case: str, kind: str, says: str, results: Any) -> None:
    """With the reason, and nobody waits for another."""
    for answer in results(2):
        name, text = answer["refusals"][case]

        assert name == kind
        assert says in text
