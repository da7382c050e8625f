"""AReaL's model roles and servers into ours: layouts, options, optimizers, adapters.

Knows: `allocation_mode`, the engines' sections, which keys of a role have another name here.
Does not know: the loss (`algorithm`).
"""

from __future__ import annotations

from areal_config.migrate.draft import Draft
from areal_config.migrate.layouts import Layout, parse_layouts

ROLES = {"actor": "actor", "critic": "critic", "ref": "reference"}
_OPTIMIZER = {
    "lr": "lr",
    "weight_decay": "weight_decay",
    "eps": "eps",
    "min_lr_ratio": "min_lr_ratio",
    "lr_scheduler_type": "schedule",
    "gradient_clipping": "max_grad_norm",
}
_SERVERS = {"sglang": "mem_fraction_static attention_backend disable_radix_cache", "vllm": "enforce_eager"}
"""Arguments of servers that are carried over; the others are told."""
_TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def convert_layouts(draft: Draft) -> None:
    """Convert where everything runs."""
    before = ""
    for layout in parse_layouts(mode) if (mode := draft.take("allocation_mode")) else []:
        role = _place(draft, layout)
        if layout.shares and {role, before} == {"actor", "rollout"}:
            draft.set("placement", "shared")
        elif layout.shares:
            draft.decide.append(
                f"{role}.placement.together_with: it shared devices before, {{role: ROLE, share: devices}} says so"
            )
        before = role
    for theirs, ours in {"rollout": "rollout", **ROLES}.items():
        if backend := draft.take(f"{theirs}.backend"):
            _place(draft, parse_layouts(backend)[0], ours)


def _place(draft: Draft, layout: Layout, role: str = "") -> str:
    """Convert the backend of a role, and return which role it is."""
    role = role or ("rollout" if layout.generates else ROLES.get(layout.role, "actor"))
    draft.set(f"{role}.backend", layout.backend)
    if layout.expert_tensor > 1:
        draft.set(f"{role}.options.expert_tensor", layout.expert_tensor)
    return role


def convert_role(draft: Draft, theirs: str, steps: int | None) -> None:
    """Convert one training role, if the old yaml has it; `steps` are those of its optimizer."""
    ours = ROLES[theirs]
    if not draft.has(theirs):
        return
    if "backend" not in draft.new.get(ours, {}):
        draft.set(f"{ours}.backend", draft.new.get("actor", {}).get("backend"))
    path, dtype = draft.take(f"{theirs}.path"), draft.take(f"{theirs}.dtype", "bfloat16")
    if theirs == "actor":
        draft.set("model.path", path)
        draft.set("model.dtype", dtype)
    else:
        draft.set(f"{ours}.path", path if path != draft.new.get("model", {}).get("path") else None)
        draft.set(f"{ours}.dtype", dtype if dtype != draft.new.get("model", {}).get("dtype") else None)
    if draft.take(f"{theirs}.gradient_checkpointing"):
        draft.set(f"{ours}.options.activation_checkpointing", True)
    if draft.take(f"{theirs}.fsdp.offload_params"):
        draft.set(f"{ours}.options.cpu_offload", True)
    if (virtual := draft.take(f"{theirs}.megatron.virtual_pipeline_parallel_size", 1)) > 1:
        draft.set(f"{ours}.options.virtual", virtual)
    draft.set(f"{ours}.max_tokens_per_microbatch", draft.take(f"{theirs}.mb_spec.max_tokens_per_mb"))
    if theirs != "ref" and draft.has(f"{theirs}.optimizer"):
        _optimizer(draft, theirs, ours, steps)
    if draft.take(f"{theirs}.use_lora"):
        _lora(draft, theirs, ours)
    _scheduling(draft, theirs, ours)


def _optimizer(draft: Draft, theirs: str, ours: str, steps: int | None) -> None:
    here = f"{theirs}.optimizer"
    kind = draft.take(f"{here}.type", "adam")
    if kind != "adam":
        draft.lost.append(f"{here}.type: {kind}: AdamW is the one optimizer")
    draft.set(f"{ours}.optimizer.lr", float(draft.take(f"{here}.lr", 1e-3)))
    for name, ours_name in _OPTIMIZER.items():
        value = draft.take(f"{here}.{name}")
        draft.set(f"{ours}.optimizer.{ours_name}", float(value) if isinstance(value, int) else value)
    first, second = draft.take(f"{here}.beta1"), draft.take(f"{here}.beta2")
    if first is not None or second is not None:
        betas = [0.9 if first is None else first, 0.999 if second is None else second]
        draft.set(f"{ours}.optimizer.betas", [float(beta) for beta in betas])
    share = draft.take(f"{here}.warmup_steps_proportion", 0.0)
    schedule = draft.new[ours]["optimizer"].get("schedule", "constant")
    if steps is not None:
        draft.set(f"{ours}.optimizer.warmup_steps", round(share * steps) or None)
        draft.set(f"{ours}.optimizer.total_steps", steps if schedule != "constant" else None)
    elif share > 0.001 or schedule != "constant":
        draft.decide.append(
            f"{ours}.optimizer.warmup_steps and total_steps: shares of {share:g} and 1 of optimizer steps"
        )
    for name in ("initial_loss_scale", "min_loss_scale", "loss_scale_window", "hysteresis"):
        draft.drop(f"{here}.{name}")  # of float16, which no engine here trains in


def _lora(draft: Draft, theirs: str, ours: str) -> None:
    targets = draft.take(f"{theirs}.target_modules", [])
    if not targets or "all-linear" in targets:
        draft.decide.append(f"{ours}.lora.targets: all linear layers were meant; these are a dense model's")
        targets = _TARGETS
    rank, alpha = draft.take(f"{theirs}.lora_rank", 32), draft.take(f"{theirs}.lora_alpha", 16)
    draft.set(f"{ours}.lora", {"rank": rank, "alpha": float(alpha), "targets": list(targets)})


def _scheduling(draft: Draft, theirs: str, ours: str) -> None:
    """Convert what a role asked the scheduler for, its first task's."""
    spec = draft.take(f"{theirs}.scheduling_spec")
    first = spec[0] if isinstance(spec, list) and spec and isinstance(spec[0], dict) else {}
    cpus = "cpus_per_replica" if ours == "rollout" else "cpus_per_rank"
    draft.set(f"{ours}.{cpus}", first.get("cpu") or None)
    draft.set(f"{ours}.placement.env", dict(first["env_vars"]) if first.get("env_vars") else None)
    for word in ("image", "nodelist", "exclude"):
        if first.get(word):
            draft.decide.append(f"{ours}.placement: {word} {first[word]} asks for a scheduler that has it")
    for word in ("scheduling_spec", "use_lora", "peft_type", "lora_rank", "lora_alpha", "target_modules"):
        draft.drop(f"{theirs}.{word}")


def convert_servers(draft: Draft) -> None:
    """Convert the sections of inference engines; the one that is not used is dropped."""
    used = str(draft.new.get("rollout", {}).get("backend", "")).partition(":")[0]
    _scheduling(draft, "rollout", "rollout")
    for engine, carried in _SERVERS.items():
        if engine != used:
            draft.drop(engine)
            continue
        for length in ("context_length", "max_model_len"):
            draft.set("rollout.context_length", draft.take(f"{engine}.{length}"))
        for word in ("model", "model_path", "dtype", "seed", "skip_tokenizer_init"):
            draft.drop(f"{engine}.{word}")  # said by the run
        draft.set("rollout.options.device_memory_share", draft.take(f"{engine}.gpu_memory_utilization"))
        arguments: list[str] = []
        for name in carried.split():
            value = draft.take(f"{engine}.{name}")
            flag = f"--{name.replace('_', '-')}"
            arguments += [flag] if value is True else [] if value in (None, False) else [flag, str(value)]
        draft.set("rollout.options.server_args", arguments or None)
        for key, value in draft.left(engine).items():
            draft.take(key)
            if value not in (None, False, ""):
                draft.lost.append(f"{key}: {value}: if it is still wanted, in rollout.options.server_args")
