"""Yamls of AReaL become runs that load and can be planned; what has no equal is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from areal_config.migrate.command import as_yaml, read
from areal_config.migrate.convert import Migration, migrate
from areal_config.migrate.layouts import parse_layouts
from areal_core.cli.main import main
from areal_core.config.load import load_config
from areal_core.config.plan import make_plan
from areal_core.config.schema import RunConfig
from areal_core.contract.errors import ConfigError
from areal_core.plugins.registry import Registry
from areal_torch.testing.models import make_tiny_model

OLD = Path(__file__).parent / "areal"
SHAPES = sorted(path.stem for path in OLD.glob("*.yaml"))


def converted(name: str) -> Migration:
    """Return one of the old files, converted."""
    return migrate(read(OLD / f"{name}.yaml"))


def run(name: str) -> RunConfig:
    """Return the run one of them becomes."""
    return load_config(base=converted(name).config)


@pytest.mark.parametrize("name", SHAPES)
def test_the_output_loads_and_says_the_same_again(name: str, tmp_path: Path) -> None:
    """What is printed is a run's yaml."""
    migration = converted(name)
    file = tmp_path / "run.yaml"
    file.write_text(as_yaml(migration, name))

    assert load_config(file) == load_config(base=migration.config)


@pytest.mark.parametrize("name", SHAPES)
def test_the_output_can_be_planned(name: str, tmp_path: Path) -> None:
    """On a machine that has the devices and the engines; model and reward, which no yaml names, are given."""
    kind = "qwen3_moe" if "megatron" in name else "qwen3"
    model = make_tiny_model(tmp_path / "model", kind=kind, max_position=65536)
    given = [f"model.path={model}", "loggers=[]", *role_paths(name, model)]
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"prompt": "a", "completion": "b", "chosen": "b", "rejected": "c"}) + "\n")
    if run(name).kind == "rl":
        given += ["rollout.reward.name=math_verify"]
    else:
        given += [f"data={{name: jsonl, options: {{path: {rows}}}}}", "evaluation.data=null"]
    plain = {**converted(name).config}
    if run(name).kind != "rl":
        del plain["data"]
    config = load_config(base=plain, overrides=given)

    make_plan(config, Registry(), {"cuda": 64}, installed=False)


def role_paths(name: str, model: Path) -> list[str]:
    """Return the overrides that give roles with a model of their own the tiny one."""
    roles = converted(name).config
    return [f"{role}.path={model}" for role in ("critic", "reference") if roles.get(role, {}).get("path")]


@pytest.mark.parametrize("dynamic", [True, False])
def test_a_dynamic_batch_stays_one(dynamic: bool) -> None:
    """The filter was handed over by a script, so it is asked for; without the switch nothing is said."""
    migration = migrate({**read(OLD / "gsm8k_grpo.yaml"), "dynamic_bs": dynamic})

    assert load_config(base=migration.config).rollout.dynamic_batch is dynamic
    assert any(line.startswith("rollout.accept: ") for line in migration.decide) is dynamic
    assert not any("dynamic_bs" in line for line in migration.lost)


def test_grpo_keeps_its_numbers() -> None:
    """Groups, staleness, clip, normalisation, the decoupled loss with its mask, the optimizer."""
    config, migration = run("gsm8k_grpo"), converted("gsm8k_grpo")
    algorithm, optimizer = config.algorithm, config.actor.optimizer

    assert (config.name, config.steps, config.kind) == ("gsm8k-grpo-trial0", 200, "rl")
    assert (config.rollout.prompts_per_step, config.rollout.group_size, config.rollout.max_staleness) == (256, 4, 2)
    assert (config.rollout.backend, config.actor.backend) == ("sglang:d4", "fsdp:d4")
    assert (optimizer.lr, optimizer.weight_decay, optimizer.warmup_steps) == (1.7e-5, 0.017, 10)
    assert algorithm.objective.options == {"clip_low": 0.4}
    assert (algorithm.proximal, algorithm.behaviour.mode, algorithm.behaviour.upper) == ("recompute", "mask", 5.0)
    assert (algorithm.advantages.reward_norm.mean, algorithm.advantages.advantage_norm.std) == ("group", "batch")
    assert (algorithm.advantages.reward_scale, algorithm.advantages.reward_bias) == (10.0, -0.5)
    assert config.reference is None and config.rollout.reward.name == "math_verify"
    assert config.actor.options == {"activation_checkpointing": True} and config.rollout.cpus_per_replica == 4
    assert any("recover.freq_epochs: 1" in line for line in migration.decide)
    assert any("chunked_prefill_size" in line for line in migration.lost)


def test_several_machines_are_a_decision() -> None:
    """With the old layout in one word; the reference model has the actor's, a schedule counts optimizer steps."""
    config, migration = run("multi_node"), converted("multi_node")

    assert (config.rollout.backend, config.actor.backend) == ("sglang:d12", "fsdp:d4c2")
    assert config.reference is not None and config.reference.backend == "fsdp:d4c2"
    assert (config.algorithm.advantages.kl.coefficient, config.algorithm.advantages.kl.estimator) == (0.05, "k2")
    assert (config.actor.optimizer.warmup_steps, config.actor.optimizer.total_steps) == (40, 4000)
    assert config.algorithm.proximal == "loglinear" and config.algorithm.behaviour.mode == "none"
    assert [logger.name for logger in config.loggers] == ["wandb", "tensorboard"]
    told = " ".join(migration.decide)
    assert "4 machines" in told and "algorithm.behaviour.mode" in told and "rollout.reward.name" in told
    assert "some_new_key.of: a later release" in migration.lost


def test_an_adapter_a_critic_and_experts_are_converted() -> None:
    """LoRA with its targets; PPO's critic with its own clip; Megatron's hybrid layout."""
    lora, experts = run("lora"), run("vllm_megatron")

    assert lora.actor.lora is not None and (lora.actor.lora.rank, lora.actor.lora.alpha) == (16, 16.0)
    assert lora.rollout.options == {"device_memory_share": 0.5, "server_args": ["--enforce-eager"]}
    assert lora.algorithm.advantages.reward_norm.leave_one_out and lora.weight_sync.transport == "disk"
    assert (experts.actor.backend, experts.actor.options) == ("megatron:d2t2e2", {"expert_tensor": 2})
    assert experts.critic is not None and experts.critic.backend == "fsdp:d2"
    assert experts.algorithm.critic_objective.options == {"clip": 0.5}
    assert experts.algorithm.objective.options == {"ratio_level": "sequence"}


def test_runs_on_rows_have_their_kind() -> None:
    """Supervised by epochs; pairs with their beta and loss."""
    sft, dpo = run("sft"), run("dpo")

    assert (sft.kind, sft.options) == ("sft", {"batch_size": 128, "epochs": 5, "max_length": 2048})
    assert sft.actor.optimizer.betas == (0.9, 0.95)
    assert (dpo.kind, dpo.options["beta"], dpo.steps) == ("ipo", 0.2, 100)
    assert dpo.reference is not None


def test_defaults_that_differ_are_written_down() -> None:
    """A key the old file leaves out has the old default: no normalisation, four minibatches, synchronous."""
    config = load_config(base=migrate({"actor": {"path": "m"}, "train_dataset": {"path": "d"}}).config)

    assert (config.rollout.group_size, config.rollout.max_staleness, config.algorithm.minibatches) == (1, 0, 4)
    assert config.rollout.sampling.max_new_tokens == 16384 < config.actor.max_tokens_per_microbatch
    assert config.algorithm.advantages.reward_norm.mean == "none" and config.model.dtype == "bfloat16"


@pytest.mark.parametrize(
    ("mode", "placement"), [("sglang:d2|fsdp:d2", "shared"), ("vllm:d2+fsdp:d2|megatron[critic]:d2", "separate")]
)
def test_trainer_and_generator_on_the_same_devices_take_turns(mode: str, placement: str) -> None:
    """Only these two: who else shares devices is to be decided."""
    old = {"actor": {"path": "m"}, "train_dataset": {"path": "d"}, "allocation_mode": mode}
    migration = migrate(old)

    assert load_config(base=migration.config).placement == placement
    assert any("critic.placement.together_with" in text for text in migration.decide) is (placement == "separate")


@pytest.mark.parametrize(
    ("text", "backends"),
    [
        ("fsdp:d4p1t1", ["fsdp:d4"]),
        ("sglang.d4p1t1+d4t2", ["sglang:d4", "fsdp:d4t2"]),
        ("vllm[rollout]:d2t2 + megatron[actor]:d2t2|fsdp[critic]:d4", ["vllm:d2t2", "megatron:d2t2", "fsdp:d4"]),
        ("megatron:(attn:d4p2t2c2|ffn:d2p2t4e2)", ["megatron:d4p2t2c2e2"]),
        ("sglang:d1+megatron:attn:d4t2|ffn:d2e4", ["sglang:d1", "megatron:d4t2e4"]),
    ],
)
def test_layouts_are_read(text: str, backends: list[str]) -> None:
    """In both spellings, with names, shared devices and experts."""
    assert [layout.backend for layout in parse_layouts(text)] == backends


@pytest.mark.parametrize(
    ("old", "said"),
    [
        ({"model": {"path": "m"}}, "no configuration of AReaL"),
        ({"actor": {"path": "m"}, "train_dataset": {}, "allocation_mode": "d4:fsdp"}, "cannot be read"),
    ],
)
def test_what_cannot_be_converted_is_refused(old: dict[str, Any], said: str) -> None:
    """With what to do instead."""
    with pytest.raises(ConfigError, match=said) as told:
        migrate(old)

    assert told.value.fix


def test_the_command_prints_a_yaml_and_tells_the_rest_aside(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """So that `areal migrate-config OLD.yaml > run.yaml` is a run."""
    assert main(["migrate-config", str(OLD / "lora.yaml")]) == 0
    told = capsys.readouterr()
    (tmp_path / "run.yaml").write_text(told.out)

    assert load_config(tmp_path / "run.yaml") == run("lora")
    assert "to decide: actor.lora.targets" in told.err and "no equal: vllm.max_num_seqs: 64" in told.err
    assert main(["migrate-config", str(tmp_path / "missing.yaml")]) == 2
