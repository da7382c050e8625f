"""What both TRL scripts share: the same prompts, reward, evaluation and clock as areal's run.

Runs in TRL's own environment; nothing of areal is imported here. Prompts, answers and reasoning-gym's entries
come in files that `equal_steps.py` writes from areal's data sets, so both sides see the same rows in the same order.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import reasoning_gym  # here, so that the first reward does not wait for it: areal's pool has it loaded as well

EOS = 1


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the arguments of both scripts and set the number of threads, before torch is imported."""
    parser = argparse.ArgumentParser()
    for name in ("model", "rows", "held", "out", "scratch"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("steps", "seed", "threads", "max-new", "eval-every", "prompts", "group", "warmup"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--lr", type=float, required=True)
    parser.add_argument("--server", default="")
    parser.add_argument("--staleness", type=int, default=4)
    options = parser.parse_args(argv)
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    return options


def settings(options: argparse.Namespace) -> dict[str, Any]:
    """Return what both of TRL's trainers take. Any: their own types."""
    return {
        "output_dir": options.scratch,
        "seed": options.seed,
        "use_cpu": True,
        "bf16": False,
        "learning_rate": options.lr,
        "lr_scheduler_type": "constant_with_warmup",
        "warmup_steps": options.warmup,
        "per_device_train_batch_size": options.prompts * options.group,
        "num_generations": options.group,
        "gradient_accumulation_steps": 1,
        "max_completion_length": options.max_new,
        "max_steps": options.steps,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "max_grad_norm": 1.0,
        "adam_beta1": 0.9,
        "adam_beta2": 0.99,
        "weight_decay": 0.0,
        "logging_steps": 1,
        "report_to": "none",
        "save_strategy": "no",
        "gradient_checkpointing": False,
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
    }


def read_rows(path: str) -> list[dict[str, Any]]:
    """Return the rows of a file. Any: reasoning-gym decides what an entry holds."""
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


@functools.cache
def scorer_of(name: str) -> Any:
    """Return reasoning-gym's scorer, built once, as areal does: building one reads its word list."""
    return reasoning_gym.get_score_answer_fn(name)


def score(row: dict[str, Any], completion: str, finished: bool) -> float:
    """Return what areal's reward `reasoning_gym` with `exact` gives."""
    if not finished:
        return 0.0
    completion = completion.strip()
    scorer = scorer_of(row["entry"]["metadata"]["source_dataset"])
    return float(scorer(completion, row["entry"]) >= 1.0 and completion == row["answer"])


class Reward:
    """TRL's reward function; an instance, because TRL sends it to another process."""

    __name__ = "spelled"

    def __init__(self, path: str) -> None:
        self._path = path
        self._rows: list[dict[str, Any]] = []

    def __call__(self, completions: Any, completion_ids: Any, number: Any, **_: Any) -> list[float]:
        """Score a batch. Any: TRL gives text, or messages from its asynchronous trainer."""
        self._rows = self._rows or read_rows(self._path)
        texts = [c if isinstance(c, str) else c[0]["content"] for c in completions]
        ends = [EOS in [int(token) for token in ids] for ids in completion_ids]
        return [score(self._rows[n], text, end) for n, text, end in zip(number, texts, ends, strict=True)]


def evaluate(model: Any, tokenizer: Any, held: Sequence[dict[str, Any]], max_new: int) -> float:
    """Return the mean greedy reward on the held-out rows. Any: transformers."""
    import torch

    tokenizer.padding_side = "left"
    training = model.training
    model.eval()
    inputs = tokenizer([row["prompt"] for row in held], return_tensors="pt", padding=True)
    inputs.pop("token_type_ids", None)
    with torch.no_grad():
        out = model.generate(**inputs, max_new_tokens=max_new, do_sample=False, pad_token_id=0, eos_token_id=EOS)
    model.train(training)
    out = out[:, inputs["input_ids"].shape[1] :]
    texts = tokenizer.batch_decode(out, skip_special_tokens=True)
    ends = (out == EOS).any(1).tolist()
    return sum(score(row, text, end) for row, text, end in zip(held, texts, ends, strict=True)) / len(held)


class TrainingTimer:
    """Measures the RL phase: from the first batch asked for to the end of the last step, evaluations left out."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._began = self._paused = 0.0
        self.seconds = self._first = 0.0
        self.evaluations: list[tuple[int, float]] = []
        self.reached: list[tuple[float, float]] = []
        self.rewards: list[float] = []

    def start(self) -> None:
        """Begin."""
        self._began = time.perf_counter()

    def step(self, number: int, evaluation: Callable[[], float]) -> None:
        """Note the end of a step, and evaluate if it is due."""
        ended = time.perf_counter()
        self.seconds = ended - self._began - self._paused
        self._first = self._first or self.seconds
        if self._options.eval_every and number % self._options.eval_every == 0:
            reward = evaluation()
            self.evaluations.append((number, reward))
            self.reached.append((self.seconds, reward))
            self._paused += time.perf_counter() - ended

    def write(self, final: float, **details: Any) -> None:
        """Write what `equal_steps.py` and `time_to_reward.py` read. Any: json."""
        record = {
            "seconds": self.seconds,
            "after_first_s": self.seconds - self._first,
            "final": final,
            "evaluations": self.evaluations,
            "reached": self.reached,
            "rewards": self.rewards,
            **details,
        }
        Path(self._options.out).write_text(json.dumps(record))
