"""What keys of verl's configuration are called here.

Knows: names of `ppo_trainer.yaml` and of its fully asynchronous recipe, with their dotted paths.
Does not know: how they are looked up (`called`).
"""

from __future__ import annotations

from areal_config.names.name import Names, nothing, to

_OBJECTIVE = "algorithm.objective.options"
_BY_TOKENS = "a step is cut into forward passes by tokens"
_MINI = "how many parts, not how many rows of each"

NAMES: Names = {
    "data.train_files": to("data.name", "data.options.path", note="data.name=hub takes parquet files"),
    "data.val_files": to("evaluation.data.name", "evaluation.data.options.path"),
    "data.train_batch_size": to("rollout.prompts_per_step"),
    "data.val_batch_size": nothing("requests of an evaluation run side by side"),
    "data.max_prompt_length": to("rollout.context_length", note="prompt and answer together"),
    "data.max_response_length": to("rollout.sampling.max_new_tokens"),
    "data.prompt_key": to("data.options.columns", note="{prompt: NAME}"),
    "data.seed": to("seed"),
    "actor_rollout_ref.model.path": to("model.path"),
    "actor_rollout_ref.model.lora_rank": to("actor.lora.rank"),
    "actor_rollout_ref.model.lora_alpha": to("actor.lora.alpha"),
    "actor_rollout_ref.model.target_modules": to("actor.lora.targets"),
    "actor_rollout_ref.model.enable_gradient_checkpointing": to("actor.options.activation_checkpointing"),
    "actor_rollout_ref.model.use_remove_padding": nothing("sequences are always packed"),
    "actor_rollout_ref.model.trust_remote_code": nothing("no code of a model folder is run"),
    "actor_rollout_ref.hybrid_engine": to("placement", note="true is shared"),
    "actor_rollout_ref.actor.strategy": to("actor.backend", note="fsdp:d8, megatron:d2t4"),
    "actor_rollout_ref.actor.ppo_mini_batch_size": to("algorithm.minibatches", note=_MINI),
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": to("actor.max_tokens_per_microbatch", note=_BY_TOKENS),
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": to("actor.max_tokens_per_microbatch"),
    "actor_rollout_ref.actor.use_dynamic_bsz": nothing(_BY_TOKENS),
    "actor_rollout_ref.actor.ppo_epochs": to("algorithm.epochs"),
    "actor_rollout_ref.actor.clip_ratio": to(f"{_OBJECTIVE}.clip_low", f"{_OBJECTIVE}.clip_high"),
    "actor_rollout_ref.actor.clip_ratio_low": to(f"{_OBJECTIVE}.clip_low"),
    "actor_rollout_ref.actor.clip_ratio_high": to(f"{_OBJECTIVE}.clip_high"),
    "actor_rollout_ref.actor.clip_ratio_c": to(f"{_OBJECTIVE}.dual_clip"),
    "actor_rollout_ref.actor.entropy_coeff": to(f"{_OBJECTIVE}.entropy_coefficient"),
    "actor_rollout_ref.actor.use_kl_loss": to("algorithm.kl_loss.coefficient", "reference.backend"),
    "actor_rollout_ref.actor.kl_loss_coef": to("algorithm.kl_loss.coefficient"),
    "actor_rollout_ref.actor.kl_loss_type": to("algorithm.kl_loss.estimator", note="kl: k1, mse: k2, low_var_kl: k3"),
    "actor_rollout_ref.actor.loss_agg_mode": to(
        f"{_OBJECTIVE}.normalizer",
        note="token-mean: tokens; seq-mean-token-mean: sequences; seq-mean-token-sum-norm: constant",
    ),
    "actor_rollout_ref.actor.policy_loss.loss_mode": to(f"{_OBJECTIVE}.surrogate", f"{_OBJECTIVE}.ratio_level"),
    "actor_rollout_ref.actor.grad_clip": to("actor.optimizer.max_grad_norm"),
    "actor_rollout_ref.actor.optim.lr": to("actor.optimizer.lr"),
    "actor_rollout_ref.actor.optim.lr_warmup_steps": to("actor.optimizer.warmup_steps"),
    "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio": to("actor.optimizer.warmup_steps", note="a number of steps"),
    "actor_rollout_ref.actor.optim.lr_scheduler_type": to("actor.optimizer.schedule"),
    "actor_rollout_ref.actor.optim.min_lr_ratio": to("actor.optimizer.min_lr_ratio"),
    "actor_rollout_ref.actor.optim.total_training_steps": to("actor.optimizer.total_steps"),
    "actor_rollout_ref.actor.optim.weight_decay": to("actor.optimizer.weight_decay"),
    "actor_rollout_ref.actor.optim.betas": to("actor.optimizer.betas"),
    "actor_rollout_ref.actor.fsdp_config.param_offload": to("actor.options.cpu_offload"),
    "actor_rollout_ref.actor.fsdp_config.optimizer_offload": to("actor.options.cpu_offload"),
    "actor_rollout_ref.actor.fsdp_config.fsdp_size": to(
        "actor.options.replicas", note="copies of the model, not ranks of one"
    ),
    "actor_rollout_ref.actor.ulysses_sequence_parallel_size": to("actor.backend", note="c of fsdp:d4c2"),
    "actor_rollout_ref.ref.fsdp_config.param_offload": to("reference.options.cpu_offload"),
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": to(
        "reference.max_tokens_per_microbatch", note=_BY_TOKENS
    ),
    "actor_rollout_ref.rollout.name": to("rollout.backend", note="vllm:d4 or sglang:d4"),
    "actor_rollout_ref.rollout.mode": nothing("generation is always asynchronous; rollout.max_staleness=0 waits"),
    "actor_rollout_ref.rollout.n": to("rollout.group_size"),
    "actor_rollout_ref.rollout.temperature": to("rollout.sampling.temperature"),
    "actor_rollout_ref.rollout.top_p": to("rollout.sampling.top_p"),
    "actor_rollout_ref.rollout.top_k": to("rollout.sampling.top_k", note="0 takes all, not -1"),
    "actor_rollout_ref.rollout.tensor_model_parallel_size": to("rollout.backend", note="t of vllm:d4t2"),
    "actor_rollout_ref.rollout.gpu_memory_utilization": to("rollout.options.device_memory_share"),
    "actor_rollout_ref.rollout.max_model_len": to("rollout.context_length"),
    "actor_rollout_ref.rollout.max_num_seqs": to("rollout.max_concurrent", note="groups in flight, over all replicas"),
    "actor_rollout_ref.rollout.free_cache_engine": to("placement", note="true is shared"),
    "actor_rollout_ref.rollout.enforce_eager": to("rollout.options.server_args", note="[--enforce-eager]"),
    "actor_rollout_ref.rollout.calculate_log_probs": nothing("always: the sampling log-probs are what is trained with"),
    "actor_rollout_ref.rollout.multi_turn.enable": to("rollout.workflow.name", note="a workflow makes the turns"),
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": to(
        "actor.max_tokens_per_microbatch", note=_BY_TOKENS
    ),
    "algorithm.adv_estimator": to(
        "algorithm.advantages.estimator.name",
        note="grpo: group_mean, rloo: leave_one_out, reinforce_plus_plus: reinforce++",
    ),
    "algorithm.gamma": to("algorithm.advantages.gamma"),
    "algorithm.lam": to("algorithm.advantages.lam"),
    "algorithm.use_kl_in_reward": to("algorithm.advantages.kl.coefficient", "reference.backend"),
    "algorithm.kl_penalty": to("algorithm.advantages.kl.estimator", note="kl: k1, mse: k2, low_var_kl: k3"),
    "algorithm.kl_ctrl.kl_coef": to("algorithm.advantages.kl.coefficient"),
    "algorithm.kl_ctrl.type": nothing("the coefficient stays as it is"),
    "algorithm.norm_adv_by_std_in_grpo": to(
        "algorithm.advantages.estimator.options.std", note="of group_mean: group, or none for Dr. GRPO"
    ),
    "algorithm.rollout_is": to("algorithm.behaviour.mode", "algorithm.behaviour.level"),
    "algorithm.rollout_is_threshold": to("algorithm.behaviour.upper"),
    "algorithm.filter_groups.enable": nothing(
        "groups whose rewards agree have no advantage, and are counted in metrics"
    ),
    "critic.model.path": to("critic.path"),
    "critic.optim.lr": to("critic.optimizer.lr"),
    "critic.ppo_epochs": to("algorithm.epochs"),
    "critic.ppo_mini_batch_size": to("algorithm.minibatches", note=_MINI),
    "critic.ppo_micro_batch_size_per_gpu": to("critic.max_tokens_per_microbatch", note=_BY_TOKENS),
    "critic.cliprange_value": to("algorithm.critic_objective.options.clip"),
    "reward_model.enable": nothing("a reward is a function, which may ask a server"),
    "reward_model.reward_manager": to("rollout.reward.name"),
    "custom_reward_function.path": to("imports", note="a list of your own files"),
    "custom_reward_function.name": to("rollout.reward.name"),
    "trainer.total_epochs": to("steps", note="steps, not epochs"),
    "trainer.total_training_steps": to("steps"),
    "trainer.project_name": to("loggers", note="[{name: wandb, options: {project: NAME}}]"),
    "trainer.experiment_name": to("name"),
    "trainer.logger": to("loggers", note="[{name: wandb}]; the console shows a run anyway"),
    "trainer.n_gpus_per_node": to(
        "actor.backend", "rollout.backend", note="layouts say how many devices each role has"
    ),
    "trainer.nnodes": to("actor.placement.num_hosts", "scheduler.backend"),
    "trainer.save_freq": to("checkpoint.every_steps"),
    "trainer.max_actor_ckpt_to_keep": to("checkpoint.keep"),
    "trainer.test_freq": to("evaluation.every_steps"),
    "trainer.val_before_train": to("evaluation.before"),
    "trainer.default_local_dir": to("out"),
    "trainer.resume_mode": nothing("areal train --resume FOLDER; a run that loses a worker resumes by itself"),
    "trainer.device": to("device"),
    "async_training.staleness_threshold": to("rollout.max_staleness", note="versions, not a share of a batch"),
    "async_training.trigger_parameter_sync_step": nothing("weights are sent after every step"),
    "async_training.partial_rollout": to("weight_sync.pause", note="answers go on over an update; keep or abort"),
}
"""verl's name -> ours."""
