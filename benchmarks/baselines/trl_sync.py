"""TRL's GRPOTrainer on one of areal's tasks: synchronous, generation by transformers' `generate`.

Run by `equal_steps.py` and `time_to_reward.py` in TRL's own environment. Same checkpoint, prompts, reward, group size,
learning rate and clipping as areal's preset; what TRL and areal call differently is set to mean the same.
"""

from __future__ import annotations

import contender

OPTIONS = contender.parse()

import torch  # noqa: E402  the number of threads is set first
import transformers  # noqa: E402
import trl  # noqa: E402
from datasets import Dataset  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback  # noqa: E402
from trl import GRPOConfig, GRPOTrainer  # noqa: E402


class Watch(TrainerCallback):
    """Tells the clock about steps."""

    def __init__(self, clock: contender.TrainingTimer, evaluation) -> None:  # type: ignore[no-untyped-def]
        self._clock, self._evaluation = clock, evaluation

    def on_train_begin(self, *_, **__) -> None:  # type: ignore[no-untyped-def]
        """Start the clock."""
        self._clock.start()

    def on_log(self, args, state, control, logs=None, **__) -> None:  # type: ignore[no-untyped-def]
        """Keep the training reward."""
        if logs and "reward" in logs:
            self._clock.rewards.append(round(float(logs["reward"]), 4))

    def on_step_end(self, args, state, control, **__) -> None:  # type: ignore[no-untyped-def]
        """Note the step."""
        self._clock.step(state.global_step, self._evaluation)


def main() -> None:
    """Train, evaluate, write."""
    torch.set_num_threads(OPTIONS.threads)
    transformers.logging.set_verbosity_error()
    tokenizer = AutoTokenizer.from_pretrained(OPTIONS.model)
    model = AutoModelForCausalLM.from_pretrained(OPTIONS.model, dtype=torch.float32)
    held = contender.read_rows(OPTIONS.held)
    prompts = [row["prompt"] for row in contender.read_rows(OPTIONS.rows)]
    data = Dataset.from_list([{"prompt": prompt, "number": number} for number, prompt in enumerate(prompts)])
    clock = contender.TrainingTimer(OPTIONS)
    config = GRPOConfig(
        **contender.settings(OPTIONS),
        beta=0.0,
        epsilon=0.2,
        loss_type="dapo",  # the mean over tokens, as areal's
        scale_rewards="group",
        num_iterations=1,
        shuffle_dataset=False,
    )
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=contender.Reward(OPTIONS.rows),
        args=config,
        train_dataset=data,
        processing_class=tokenizer,
    )
    trainer.add_callback(Watch(clock, lambda: contender.evaluate(model, tokenizer, held, OPTIONS.max_new)))
    trainer.remove_callback(transformers.trainer_callback.PrinterCallback)
    trainer.train()
    final = contender.evaluate(model, tokenizer, held, OPTIONS.max_new)
    clock.write(final, trl=trl.__version__, torch=torch.__version__, transformers=transformers.__version__)


if __name__ == "__main__":
    main()
