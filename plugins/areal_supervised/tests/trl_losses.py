"""Twenty steps of TRL's own trainers: `python trl_losses.py KIND MODEL ROWS SETTINGS` prints their losses as json.

A process of its own: TRL sets up logging, warnings and environment for a whole process.
"""

from __future__ import annotations

import json
import sys
import tempfile
from typing import Any

import torch
from datasets import load_dataset
from transformers import AutoTokenizer
from trl import DPOConfig, DPOTrainer, RewardConfig, RewardTrainer, SFTConfig, SFTTrainer


def trainer(kind: str, model: str, rows: Any, settings: dict[str, Any]) -> Any:  # Any: TRL's and datasets' own
    """Return TRL's trainer of a kind, on the rows in their order, in float32 on the CPU."""
    own: dict[str, Any] = {
        "sft": {"completion_only_loss": True},
        "dpo": {"loss_type": ["sigmoid"]},
        "ipo": {"loss_type": ["ipo"]},
    }.get(kind, {})
    config, kind_of = {"sft": (SFTConfig, SFTTrainer), "reward_model": (RewardConfig, RewardTrainer)}.get(
        kind, (DPOConfig, DPOTrainer)
    )
    arguments = config(
        output_dir=tempfile.mkdtemp(),
        lr_scheduler_type="constant",
        logging_steps=1,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        save_strategy="no",
        report_to=[],
        train_sampling_strategy="sequential",
        model_init_kwargs={"dtype": "float32"},
        **own,
        **settings,
    )
    made = kind_of(
        model=model, args=arguments, train_dataset=rows, processing_class=AutoTokenizer.from_pretrained(model)
    )
    if kind == "reward_model":  # ours starts at 0 where a model has no score head
        with torch.no_grad():
            made.model.score.weight.zero_()
    return made


def main(kind: str, model: str, rows: str, settings: str) -> None:
    columns = ["prompt", "completion"] if kind == "sft" else ["prompt", "chosen", "rejected"]
    data = load_dataset("json", data_files=rows, split="train").select_columns(columns)
    found = trainer(kind, model, data, json.loads(settings))
    found.train()
    print(json.dumps([entry["loss"] for entry in found.state.log_history if "loss" in entry]))


if __name__ == "__main__":
    main(*sys.argv[1:])
