"""TRL's distillation by the reverse KL on the answers that a run of ours sampled: prints its losses as json.

`python trl_distillation.py STUDENT TEACHER RUN SETTINGS`. A process of its own: TRL sets up logging, warnings and
environment for a whole process.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl.experimental.gkd import GKDConfig, GKDTrainer

from areal_episodes.reader import Reader


def sampled(run: Path, steps: int) -> list[list[dict[str, Any]]]:
    """Return the answers of each step as token ids and labels, -100 where nothing was generated. Any: json."""
    with Reader(run) as reader:
        return [
            [
                {
                    "input_ids": trajectory.input_ids.tolist(),
                    "labels": torch.where(trajectory.loss_mask, trajectory.input_ids, -100).tolist(),
                }
                for _, trajectories in reader.trained(step)
                for trajectory in trajectories
            ]
            for step in range(1, steps + 1)
        ]


def padded(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    ids, labels = (
        pad_sequence([torch.tensor(row[name]) for row in rows], batch_first=True, padding_value=filler)
        for name, filler in (("input_ids", 0), ("labels", -100))
    )
    lengths = torch.tensor([len(row["input_ids"]) for row in rows])
    mask = torch.arange(ids.shape[1])[None] < lengths[:, None]
    return {"input_ids": ids, "labels": labels, "attention_mask": mask.long()}


def main(student: str, teacher: str, run: str, settings: str) -> None:
    chosen = json.loads(settings)
    batches = sampled(Path(run), chosen.pop("steps"))
    assert len({len(batch) for batch in batches}) == 1, "steps of one size"
    arguments = GKDConfig(
        output_dir=tempfile.mkdtemp(),
        lmbda=0.0,  # the answers are there: those this student gave, had it been asked
        beta=1.0,  # KL(student, teacher)
        temperature=1.0,
        disable_dropout=True,
        lr_scheduler_type="constant",
        logging_steps=1,
        per_device_train_batch_size=len(batches[0]),
        max_steps=len(batches),
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        save_strategy="no",
        report_to=[],
        train_sampling_strategy="sequential",
        **chosen,
    )
    made = GKDTrainer(
        model=AutoModelForCausalLM.from_pretrained(student, dtype=torch.float32),
        teacher_model=AutoModelForCausalLM.from_pretrained(teacher, dtype=torch.float32),
        args=arguments,
        data_collator=padded,
        train_dataset=Dataset.from_list([row for batch in batches for row in batch]),
        processing_class=AutoTokenizer.from_pretrained(student),
    )
    made.train()
    print(json.dumps([entry["loss"] for entry in made.state.log_history if "loss" in entry]))


if __name__ == "__main__":
    main(*sys.argv[1:])
