"""Everything else of an AReaL yaml: data, sampling, how long, how often, where metrics go.

Knows: those sections.
Does not know: models and the loss (`roles`, `algorithm`).
"""

from __future__ import annotations

from areal_config.migrate.draft import Draft

_GSM8K = {
    "path": "openai/gsm8k",
    "name": "main",
    "prompt": "{question}",
    "prompt_suffix": "\nPlease reason step by step, and put your final answer within \\boxed{}.",
    "answer_after": "####",
}
_SAMPLING = ("max_new_tokens", "min_new_tokens", "temperature", "top_p", "stop", "stop_token_ids", "ignore_eos")


def convert_length(draft: Draft) -> int | None:
    """Convert name, seed and the number of steps; return the latter where it is said."""
    names = [str(name) for name in (draft.take("experiment_name"), draft.take("trial_name")) if name]
    draft.set("name", "-".join(names) or None)
    draft.set("seed", draft.take("seed"))
    steps, epochs = draft.take("total_train_steps"), draft.take("total_train_epochs", 1)
    draft.set("steps", steps)
    if steps is None:
        draft.decide.append(f"steps: the old run took {epochs} epochs; rows * {epochs} // rollout.prompts_per_step")
    return int(steps) if steps is not None else None


def convert_rollout(draft: Draft) -> None:
    """Convert sampling, groups and staleness, with AReaL's defaults where ours differ."""
    draft.set("rollout.group_size", draft.take("gconfig.n_samples", 1))
    draft.set("rollout.max_staleness", draft.take("rollout.max_head_offpolicyness", 0))
    draft.set("rollout.max_concurrent", draft.take("rollout.max_concurrent_rollouts"))
    if draft.take("dynamic_bs"):
        draft.set("rollout.dynamic_batch", True)
        draft.decide.append(
            "rollout.accept: what dynamic_bs leaves out was decided in your script; mixed is DAPO's filter"
        )
    draft.set("rollout.sampling.max_new_tokens", 16384)
    for name in _SAMPLING:
        value = draft.take(f"gconfig.{name}")
        draft.set(f"rollout.sampling.{name}", float(value) if name in ("temperature", "top_p") and value else value)
    top_k = draft.take("gconfig.top_k", 0)
    draft.set("rollout.sampling.top_k", int(top_k) if 0 < top_k < 1e8 else None)
    draft.set("rollout.context_length", draft.take("gconfig.max_tokens"))
    if draft.take("gconfig.greedy"):
        draft.decide.append("rollout.sampling.temperature: greedy answers cannot be trained on")
    draft.set("rollout.sampling.frequency_penalty", draft.take("gconfig.frequency_penalty") or None)
    for theirs, ours in (("request_timeout", "request_timeout_s"), ("request_retries", "retries")):
        value = draft.take(f"rollout.{theirs}")
        draft.set(f"rollout.{ours}", float(value) if value and ours.endswith("_s") else value)
    start = draft.take("rollout.setup_timeout")
    draft.set("scheduler.start_timeout_s", float(start) if start else None)
    temperature = draft.take("eval_gconfig.temperature")
    draft.set("evaluation.temperature", float(temperature) if temperature is not None else None)
    for known in ("consumer_batch_size", "queue_size", "enable_rollout_tracing", "check_trajectory_format"):
        draft.drop(f"rollout.{known}")
    for ours in ("actor.temperature", "actor.max_new_tokens", "rollout.tokenizer_path", "tokenizer_path"):
        draft.drop(ours)  # tied to what has been read
    draft.drop("eval_gconfig")


def convert_bound(draft: Draft) -> None:
    """Give training roles room for a whole answer; AReaL has no bound unless one is set."""
    longest = draft.new["rollout"]["sampling"]["max_new_tokens"]
    draft.new.setdefault("actor", {})
    for role in ("actor", "critic", "reference"):
        here = draft.new.get(role)
        if here is not None and longest >= here.get("max_tokens_per_microbatch", 16384):
            here["max_tokens_per_microbatch"] = 2 * longest
            draft.decide.append(f"{role}.max_tokens_per_microbatch: {2 * longest} holds a prompt and an answer")


def convert_data(draft: Draft, *, kind: str) -> None:
    """Convert the data sets; the reward stood in a script."""
    size = draft.take("train_dataset.batch_size", 1)
    draft.set("rollout.prompts_per_step" if kind == "rl" else "options.batch_size", size)
    draft.set("data.shuffle", draft.take("train_dataset.shuffle"))
    longest = draft.take("train_dataset.max_length")
    if kind != "rl":
        draft.set("options.max_length", longest)
    elif longest is not None:
        draft.lost.append(f"train_dataset.max_length: {longest}: prompts too long for the context are left out")
    gsm8k = _data_set(draft, "train_dataset", "data", "train", kind)
    if draft.has("valid_dataset.path"):
        _data_set(draft, "valid_dataset", "evaluation.data", "test", kind)
    for section in ("train_dataset", "valid_dataset"):
        draft.drop(section)  # workers, pinned memory, and what the old loader did
    if kind != "rl":
        return
    if gsm8k:
        draft.set("rollout.reward.name", "math_verify")
        draft.set("rollout.workflow", {"name": "single_turn", "options": {"chat": True}})
    else:
        draft.decide.append("rollout.reward.name: the reward was in your script; your own file goes under imports")


def _data_set(draft: Draft, theirs: str, ours: str, split: str, kind: str) -> bool:
    """Convert one data set; tell whether it is GSM8K for a run with rewards, which is known here."""
    path, split = str(draft.take(f"{theirs}.path", "")), draft.take(f"{theirs}.split", split)
    gsm8k = "gsm8k" in path and kind == "rl"
    draft.set(f"{ours}.name", "hub")
    options = {**_GSM8K, "path": path} if gsm8k else {"path": path}
    draft.set(f"{ours}.options", {**options, "split": split})
    if not gsm8k:
        draft.decide.append(
            f"{ours}.options: columns, prompt or messages of {path}: areal config {ours}.options --backend hub"
        )
    return gsm8k


def convert_saving(draft: Draft) -> None:
    """Convert checkpoints, evaluation and recovery; every checkpoint here holds the model too."""
    for theirs, ours in (("freq_steps", "every_steps"), ("freq_secs", "every_s")):
        found = [draft.take(f"{section}.{theirs}") for section in ("recover", "saver")]
        value = min((one for one in found if one), default=None)
        draft.set(f"checkpoint.{ours}", float(value) if value and ours == "every_s" else value)
    draft.set("evaluation.every_steps", draft.take("evaluator.freq_steps"))
    draft.set("evaluation.before", draft.take("evaluator.eval_before_train"))
    for key in ("saver.freq_epochs", "recover.freq_epochs", "evaluator.freq_epochs", "evaluator.freq_secs"):
        if value := draft.take(key):
            ours = "evaluation" if key.startswith("evaluator") else "checkpoint"
            draft.decide.append(f"{ours}.every_steps: the old run had {key}: {value}")
    draft.set("scheduler.restarts", draft.take("recover.retries"))
    for section in ("recover", "saver", "evaluator"):
        draft.drop(section)


def convert_loggers(draft: Draft) -> None:
    """Convert where metrics go."""
    loggers = []
    for name in ("wandb", "swanlab", "trackio"):
        here = f"stats_logger.{name}"
        mode, project = draft.take(f"{here}.mode", "disabled"), draft.take(f"{here}.project")
        draft.drop(here)
        if mode != "disabled":
            loggers.append({"name": name, "options": {"project": project} if project else {}})
    if folder := draft.take("stats_logger.tensorboard.path"):
        loggers.append({"name": "tensorboard", "options": {"folder": folder}})
    draft.set("loggers", loggers or None)
    draft.set("profile.steps", draft.take("perf_tracer.profile_steps") or None)
    for section in ("stats_logger", "perf_tracer", "memory_profiler"):
        draft.drop(section)
