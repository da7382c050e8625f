"""Every preset, adapters and conversations, trained with a real server: what it sampled is what the trainer computes.

One server of each engine serves all presets. Needs the environments of the engines. `make test-vllm`,
`make test-sglang`
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import yaml
from tests.end_to_end.live_server import KEY, Server, both_engines

from areal_algorithms.presets import presets
from areal_conformance.oracles.adapters import write_adapter
from areal_core.cli.train import train
from areal_core.config.load import load_config
from areal_core.observe.jsonl import read_lines
from areal_episodes.reader import Reader
from areal_tasks.tiny_chat import make_chat_model
from areal_torch.testing.serving import FolderWeights, model_of

EXAMPLES = Path(__file__).resolve().parents[2] / "examples/algorithms"
REWARD = Path(__file__).with_name("letters.py")
PROMPTS, GROUP, STEPS = 4, 4, 3
CLOSE = 2e-4
SETTINGS = (
    f"steps={STEPS}",
    f"imports=[{REWARD}]",
    f"rollout.prompts_per_step={PROMPTS}",
    f"rollout.group_size={GROUP}",
    "rollout.max_staleness=0",
    "rollout.sampling.max_new_tokens=8",
    "actor.optimizer.warmup_steps=0",
    "actor.optimizer.lr=0.003",
    "evaluation.before=false",
    "evaluation.every_steps=0",
    "checkpoint.every_steps=1",
    "checkpoint.keep=9",
)
"""Without staleness every step is on-policy; a reward that hardly gives two answers the same always teaches."""
LORA = "actor.lora={rank: 4, alpha: 8, targets: [q_proj, v_proj, o_proj, down_proj]}"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def server(engine: str, model: Path) -> Iterator[Server]:
    """Start the one server of an engine; its environment must have been made."""
    started = Server(engine, model)
    try:
        yield started
    finally:
        started.close()


@both_engines
@pytest.mark.parametrize("preset", [each.name for each in presets()])
def test_a_preset_trains_on_what_a_server_samples(
    tmp_path: Path, model: Path, server: Server, preset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every step is trained, with log-probs of exactly the weights that the server was given for it."""
    monkeypatch.setenv(KEY, server.key)
    run(tmp_path / "run", model, EXAMPLES / f"{preset.replace('++', '_pp')}.yaml", *server.settings())

    assert_trained(tmp_path / "run", model)


@both_engines
@pytest.mark.parametrize("travels", ["adapter", "merged"])
def test_an_adapter_is_served_as_it_is_trained(tmp_path: Path, model: Path, engine: str, travels: str) -> None:
    """Whether merged weights travel or the adapter itself: the server samples from what the checkpoint holds."""
    own = f"rollout.backend={engine}:d1", "rollout.options={kv_cache_gib: 0.25}", f"weight_sync.lora={travels}"
    run(tmp_path / "run", model, EXAMPLES / "grpo.yaml", *own, LORA)

    assert_trained(tmp_path / "run", model)


@both_engines
@pytest.mark.parametrize("trained", [(), (LORA,)], ids=["whole-weights", "beside-a-trained-adapter"])
def test_a_critic_is_served_beside_the_policy(
    tmp_path: Path, model: Path, engine: str, trained: tuple[str, ...]
) -> None:
    """Without an option of the server: it answers between two turns of the policy, which alone is trained."""
    weights = FolderWeights.of(model).tensors
    write_adapter(tmp_path / "critic", weights, rank=2, alpha=8.0, targets=("q_proj", "o_proj"), seed=1)
    critique = "{name: critique, options: {adapter: critic, question: '{prompt}{answer}>', again: '>'}}"
    own = f"rollout.backend={engine}:d1", "rollout.options={kv_cache_gib: 0.25}", f"rollout.workflow={critique}"
    adapters = f"rollout.adapters={{critic: {tmp_path / 'critic'}}}"
    run(tmp_path / "run", model, EXAMPLES / "grpo.yaml", *own, adapters, *trained)

    assert_trained(tmp_path / "run", model)
    with Reader(tmp_path / "run") as reader:
        masks = [one.loss_mask.int() for _, found in reader.trained(STEPS) for one in found]
    assert {int((mask.diff() == 1).sum()) for mask in masks} == {2}, "two turns of the policy"


@both_engines
def test_a_conversation_is_sampled_as_it_is_trained(tmp_path: Path, engine: str) -> None:
    """Three answers of one trajectory, with what was said between them: a prompt goes on with tokens, not with text."""
    model = make_chat_model(tmp_path / "chat", seed=1)
    turns = "{name: multi_turn, options: {max_turns: 3, feedback: 'no, again>', pass_reward: 9, renderer: template}}"
    own = f"rollout.backend={engine}:d1", "rollout.options={kv_cache_gib: 0.25}", f"rollout.workflow={turns}"
    run(tmp_path / "run", model, EXAMPLES / "grpo.yaml", *own)

    assert_trained(tmp_path / "run", model)
    with Reader(tmp_path / "run") as reader:
        masks = [one.loss_mask.int() for _, found in reader.trained(STEPS) for one in found]
    assert {int((mask.diff() == 1).sum()) for mask in masks} == {3}, "three answers"


def run(folder: Path, model: Path, example: Path, *overrides: str) -> None:
    """Train an example as `areal train` does, with the other reward."""
    base = yaml.safe_load(example.read_text())
    base["rollout"]["reward"] = {"name": "letters"}
    words = (f"model.path={model}", f"out={folder}", *SETTINGS, *overrides)
    assert train(load_config(None, words, base), quiet=True) == 0


def assert_trained(folder: Path, model: Path) -> None:
    """Check the records, the state at the end, and every log-prob of every episode against transformers."""
    steps = list(read_lines(folder / "metrics.jsonl"))
    assert [(record["step"], record["version"], record["stepped"]) for record in steps] == [
        (number, number, True) for number in range(1, STEPS + 1)
    ]
    assert len({record["weights"] for record in steps}) == STEPS, "the same weights were sent twice"
    assert steps[0]["train/importance_weight"] == pytest.approx(1.0, abs=CLOSE)
    assert abs(steps[0]["train/approx_kl_k1"]) < CLOSE
    assert all(record["train/engine_gap"] < CLOSE for record in steps)
    summary = json.loads((folder / "summary.json").read_text())
    assert {key: summary[key] for key in ("status", "steps", "weight_updates", "prompts_lost", "prompts_twice")} == {
        "status": "finished",
        "steps": STEPS,
        "weight_updates": STEPS,
        "prompts_lost": 0,
        "prompts_twice": 0,
    }
    assert summary["restarts"] == summary["episodes_failed"] == 0
    for step in range(1, STEPS + 1):
        before = model if step == 1 else folder / f"checkpoints/step-{step - 1:06d}/model"
        assert_sampled_from(folder, step, before)


def assert_sampled_from(folder: Path, step: int, weights: Path) -> None:
    """Check that what a step trained was sampled by exactly these weights, and that others would show."""
    policy = model_of(weights, torch.float32)
    with Reader(folder) as reader, torch.no_grad():
        trained = [trajectory for _, found in reader.trained(step) for trajectory in found]
        assert len(trained) == PROMPTS * GROUP
        for made in trained:
            ids, drawn = made.input_ids.long(), made.loss_mask.bool()
            wanted = policy(ids[None]).logits[0, :-1].float().log_softmax(-1).gather(-1, ids[1:, None]).squeeze(-1)

            assert set(made.versions[drawn].tolist()) == {step - 1}
            assert made.logprobs[drawn].tolist() == pytest.approx(wanted[drawn[1:]].tolist(), abs=CLOSE)
