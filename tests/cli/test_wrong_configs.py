"""What newcomers get wrong is refused by `--dry-run`, by name and with a way out, before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from areal_core.cli.main import main
from areal_tasks.tiny import make_spell_model

pytest.importorskip("areal_reference")
pytest.importorskip("areal_fsdp")
RUN = """
model: {{path: {model}}}
data: {{name: spell}}
rollout: {{reward: {{name: exact_match}}, sampling: {{max_new_tokens: 8}}}}
device: cpu
"""
WRONG = [
    ("learning_rate=1e-5", "unknown key 'learning_rate'"),
    ("lr=1e-5", "unknown key 'lr'"),
    ("num_generations=8", "unknown key 'num_generations'"),
    ("per_device_train_batch_size=4", "unknown key 'per_device_train_batch_size'"),
    ("kl_coef=0.1", "unknown key 'kl_coef'"),
    ("max_completion_length=128", "unknown key 'max_completion_length'"),
    ("gconfig.n_samples=8", "unknown key 'gconfig'"),
    ("rollout.n=4", "unknown key 'rollout.n'"),
    ("actor.lr=1e-5", "unknown key 'actor.lr'"),
    ("actor.optimizer.lr=-1", "actor.optimizer.lr is -1"),
    ("actor.optimizer.lr=abc", "actor.optimizer.lr: got 'abc' (str), wanted float"),
    ("actor.optimizer.schedule=cosin", "actor.optimizer.schedule is 'cosin'"),
    ("actor.optimizer.betas=[0.9,1.5]", "the second of actor.optimizer.betas is 1.5"),
    ("actor.optimizer.weight_decay=-0.1", "actor.optimizer.weight_decay is -0.1"),
    ("actor.backend=fdsp:d1", "no train backend named 'fdsp' is installed"),
    ("actor.backend=fsdp:d0", "backend 'fsdp:d0': d0 is not a size"),
    ("actor.backend=fsdp:x2", "backend 'fsdp:x2' has an unknown axis 'x'"),
    ("actor.backend=reference:d2", "train backend 'reference' cannot do 'parallel.data' on cpu"),
    ("actor.backend=reference:t2", "train backend 'reference' cannot do 'parallel.tensor' on cpu"),
    ("actor.dtype=fp16", "actor: 'dtype' must be in ('float32', 'bfloat16', 'float16') (got 'fp16')"),
    ("actor.lora={rank: 0, alpha: 16, targets: [q_proj]}", "actor.lora.rank is 0"),
    ("actor.lora={rank: 8, alpha: 16, targets: []}", "actor.lora.targets is empty"),
    ("actor.lora={r: 8, alpha: 16, targets: [q_proj]}", "actor.lora.r"),
    ("rollout.adapters={a/b: x}", "rollout.adapters: 'a/b' is no name"),
    ("rollout.adapters={critic: nowhere}", "rollout.adapters.critic 'nowhere' is no adapter folder"),
    ("actor.max_tokens_per_microbatch=4", "actor.max_tokens_per_microbatch=4 cannot hold a whole answer"),
    ("actor.options.nothing=1", "unknown key 'actor.options.nothing'"),
    ("rollout.backend=vlm:d1", "no infer backend named 'vlm' is installed"),
    ("rollout.backend=fsdp:d1", "no infer backend named 'fsdp' is installed"),
    ("rollout.group_size=0", "rollout: 'group_size' must be >= 1: 0"),
    ("rollout.group_size=1", "rollout.group_size=1 with algorithm.advantages.reward_norm.mean=group"),
    ("rollout.group_size=2.5", "rollout.group_size: got 2.5 (float), wanted int"),
    ("rollout.prompts_per_step=0", "rollout: 'prompts_per_step' must be >= 1: 0"),
    ("rollout.max_staleness=-1", "rollout: 'max_staleness' must be >= 0: -1"),
    ("rollout.max_staleness=two", "rollout.max_staleness: got 'two' (str), wanted int"),
    ("rollout.sampling.temperature=0", "rollout.sampling.temperature=0 cannot be trained on"),
    ("rollout.sampling.temperature=-1", "rollout.sampling.temperature is -1.0"),
    ("rollout.sampling.top_p=1.5", "rollout.sampling.top_p is 1.5"),
    ("rollout.sampling.top_k=-1", "rollout.sampling.top_k is -1"),
    ("rollout.sampling.max_new_tokens=0", "rollout.sampling.max_new_tokens is 0"),
    ("rollout.sampling.max_new_tokens=100000", "rollout.sampling.max_new_tokens=100000 leaves no room for a prompt"),
    ("rollout.sampling.max_tokens=8", "unknown key 'rollout.sampling.max_tokens'"),
    ("rollout.reward.name=exactmatch", "no reward named 'exactmatch' is installed"),
    ("rollout.reward.name=null", "rollout.reward.name: got None (NoneType), wanted str"),
    ("rollout.reward.options.colum=answer", "unknown key 'rollout.reward.options.colum'"),
    ("rollout.reward.timeout_s=0", "rollout.reward: 'timeout_s' must be > 0.0: 0.0"),
    ("rollout.processes=-1", "rollout: 'processes' must be >= 0: -1"),
    ("rollout.processes=two", "rollout.processes: got 'two' (str), wanted int"),
    ("rollout.accept=mixd", "no accept named 'mixd' is installed"),
    ("rollout.context_length=8", "rollout.sampling.max_new_tokens=8 leaves no room for a prompt"),
    ("data.name=gsm8k", "no dataset named 'gsm8k' is installed"),
    ("data.options.split=nonsense", "data.options: 'split' must be in ('train', 'held') (got 'nonsense')"),
    ("data={name: jsonl, options: {path: nowhere.jsonl}}", "cannot read the data set nowhere.jsonl"),
    ("data={name: jsonl}", "data.options.path is missing"),
    ("data.path=train.jsonl", "unknown key 'data.path'"),
    ("model.path=nowhere", "model folder 'nowhere' does not exist"),
    ("model=nowhere", "model: got 'nowhere' (str), wanted the keys of ModelConfig"),
    ("model.dtype=half", "model: 'dtype' must be in ('float32', 'bfloat16', 'float16') (got 'half')"),
    ("algorithm.preset=drgrpo", "algorithm.preset 'drgrpo' is unknown"),
    ("algorithm=grpo", "algorithm: got 'grpo' (str), wanted the keys of AlgorithmConfig"),
    ("algorithm.name=grpo", "unknown key 'algorithm.name'"),
    ("algorithm.preset=ppo", "algorithm.preset is ppo and there is no critic"),
    ("algorithm.objective.name=sft", "algorithm.objective.name is sft"),
    ("algorithm.objective.options.clip_low=-1", "algorithm.objective.options: 'clip_low' must be > 0.0: -1.0"),
    ("algorithm.kl_loss.coefficient=0.1", "algorithm.kl_loss.coefficient is 0.1 and there is no reference model"),
    (
        "algorithm.advantages.kl.coefficient=0.1",
        "algorithm.advantages.kl.coefficient is 0.1 and there is no reference model",
    ),
    ("algorithm.behaviour.mode=mask", "algorithm.behaviour.mode is mask with algorithm.proximal behaviour"),
    ("algorithm.minibatches=0", "algorithm: 'minibatches' must be >= 1: 0"),
    ("algorithm.minibatches=64", "algorithm.minibatches=64 of 16 prompts"),
    ("algorithm.epochs=0", "algorithm: 'epochs' must be >= 1: 0"),
    ("algorithm.advantages.estimator.name=gea", "no estimator named 'gea' is installed"),
    ("reference.path=nowhere", "model folder 'nowhere' does not exist"),
    ("critic.backend=fsdp:t3d9x", "backend 'fsdp:t3d9x' cannot be read"),
    ("evaluation.every_steps=-1", "evaluation: 'every_steps' must be >= 0: -1"),
    ("evaluation.data.name=spel", "no dataset named 'spel' is installed"),
    ("evaluation.sets.hard.data.name=spel", "no dataset named 'spel' is installed"),
    ("evaluation.sets.hard={data: {name: spell}, samples: 4}", "evaluation.sets.hard.samples=4 at temperature 0"),
    ("checkpoint.keep=0", "checkpoint: 'keep' must be >= 1: 0"),
    ("checkpoint.every=10", "unknown key 'checkpoint.every'"),
    ("device=gpu", "no device named 'gpu' is installed"),
    ("steps=0", "RunConfig: 'steps' must be >= 1: 0"),
    ("steps=ten", "steps: got 'ten' (str), wanted int"),
    ("epochs=3", "unknown key 'epochs'"),
    ("seed=one", "seed: got 'one' (str), wanted int"),
    ("kind=stf", "no kind named 'stf' is installed"),
    ("kind=dpo", "rollout.reward.name has no effect with kind=dpo"),
    ("options.beta=0.1", "options are set and kind is rl"),
    ("loggers=wandb", "loggers: got 'wandb' (str), wanted a list"),
    ("loggers=[{name: wandbb}]", "no logger named 'wandbb' is installed"),
    ("guard={entropy: 0.1}", "unknown key 'guard.entropy'"),
    ("profile={steps: [0]}", "profile: 'steps' must be >= 1: 0"),
    ("imports=[nowhere.py]", "imports: there is no file 'nowhere.py'"),
    ("scheduler.backend=slurm", "no scheduler named 'slurm' is installed"),
    ("scheduler.start_timeout_s=0", "scheduler: 'start_timeout_s' must be > 0.0: 0.0"),
    ("weight_sync.pause=never", "weight_sync: 'pause' must be in ('auto', 'none', 'keep', 'abort') (got 'never')"),
    ("out=run.yaml/out", "run.yaml/out cannot be written"),
    ("out=/proc/areal", "run folder /proc/areal cannot be written"),
    ("rollout.reward.options.column=gold", "reward 'exact_match': the first row of data has no column 'gold'"),
    ("rollout.reward={name: math_verify, options: {column: gold}}", "reward 'math_verify': the first row of data has"),
    (
        "rollout.reward={name: judge, options: {url: 'http://127.0.0.1/v1', model: m, question: '{prompt} {gold}'}}",
        "reward 'judge': the first row of data has no column 'gold'",
    ),
    (
        "data={name: jsonl, options: {path: held.jsonl}}",
        "reward 'exact_match': the first row of data has no column 'answer'",
    ),
    (
        "evaluation.data={name: jsonl, options: {path: held.jsonl}}",
        "reward 'exact_match': the first row of evaluation.data has no column 'answer'",
    ),
    ("deterministic=maybe", "deterministic: got 'maybe' (str), wanted bool"),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the yaml of a run that can be planned."""
    folder = tmp_path_factory.mktemp("wrong")
    (folder / "held.jsonl").write_text('{"prompt": "sun>"}\n')
    (folder / "run.yaml").write_text(RUN.format(model=make_spell_model(folder / "model", 1)))
    return folder / "run.yaml"


def test_the_run_itself_is_planned(run: Path) -> None:
    assert main(["train", str(run), "--dry-run"]) == 0


def test_only_a_run_of_kind_rl_makes_its_episodes_elsewhere(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The others need what the controller has."""
    assert main(["train", str(run), "--dry-run", "kind=online", "rollout.processes=2"]) != 0
    assert "rollout.processes=2 with kind=online" in capsys.readouterr().err


@pytest.mark.parametrize(("override", "what"), WRONG)
def test_one_wrong_value_is_refused_by_name_with_what_to_do(
    run: Path, override: str, what: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it is, why, and a fix or the values there are; the exit code says that nothing has begun."""
    monkeypatch.chdir(run.parent)

    code = main(["train", str(run), "--dry-run", override])

    said = capsys.readouterr()
    assert (code in (1, 2), said.out) == (True, "")
    assert what in said.err.partition("\n")[0]
    assert "fix: " in said.err or "why: " in said.err
