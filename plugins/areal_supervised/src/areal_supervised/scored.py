"""A trained reward model as the reward of a run: `rollout.reward: {name: reward_model, options: {path: DIR}}`.

Knows: a model folder with a scalar head, and that an answer is encoded as it was in training.
Does not know: how the model was trained, or how many processes share the work (`rollout.reward.workers`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from attrs import field, frozen, validators
from torch.nn.utils.rnn import pad_sequence

from areal_core.config.model_folder import load_tokenizer, read_json
from areal_core.contract.errors import ModelError
from areal_core.contract.workflow import RewardInput
from areal_core.loop.run_folder import RunFolder
from areal_tasks.datasets.encoding import FormConfig
from areal_tasks.datasets.forms import supervised
from areal_tasks.datasets.rows import Row

_HEADS = {
    "ForTokenClassification": "AutoModelForTokenClassification",
    "ForSequenceClassification": "AutoModelForSequenceClassification",
}


@frozen(kw_only=True)
class ScoredConfig(FormConfig):
    """Options of reward `reward_model`; how an answer becomes tokens has to be as it was in training."""

    path: str = field(validator=validators.min_len(1))
    """A model folder with a scalar head, or the folder of a `kind: reward_model` run, whose last checkpoint counts."""
    device: str = "cpu"
    """As torch calls it, for example cuda:0; each reward process loads the model."""
    dtype: str = field(default="float32", validator=validators.in_(("float32", "bfloat16", "float16")))
    """Of the weights."""
    batch_size: int = field(default=1, validator=validators.ge(1))
    """Answers that are scored in one forward pass, at most. More than one is for a GPU."""
    batch_wait_s: float = field(default=0.02, validator=validators.ge(0.0))
    """How long an answer waits for others, at most."""


class Scored:
    """Gives the scalar read after the end token of an answer, of several answers at once."""

    def __init__(self, config: ScoredConfig) -> None:
        """Load the model. Once per reward process.

        Raises:
            ModelError: there is no model, or it has no scalar head.
        """
        folder = _folder(Path(config.path).expanduser())
        self._config, self._tokenizer = config, load_tokenizer(folder)
        self._model = _load(folder, config)
        self.batch_size, self.batch_wait_s = config.batch_size, config.batch_wait_s

    def __call__(self, batch: Sequence[RewardInput]) -> list[float]:
        """Return the rewards of answers to their rows' prompts. Called in a reward process.

        Raises:
            DatasetError: a row has no prompt that can be encoded.
        """
        return self._scores([self._encode(value.completion, value.row) for value in batch])

    def _encode(self, completion: str, row: Row) -> Sequence[int]:
        asked = {key: value for key, value in row.items() if key in ("prompt", "tools", "chat_template_kwargs")}
        if "messages" in row:
            asked["prompt"] = row["messages"]
        return supervised({**asked, "completion": completion}, self._tokenizer, self._config).ids

    @torch.no_grad()
    def _scores(self, rows: Sequence[Sequence[int]]) -> list[float]:
        """Return the scalar of each row of tokens, padded on the right."""
        pad, of_tokens = self._model.config.pad_token_id, "TokenClassification" in type(self._model).__name__
        if len(rows) > 1 and pad is None and not of_tokens:  # where a sequence ends is known by its padding
            return [score for row in rows for score in self._scores([row])]
        lengths = torch.tensor([len(row) for row in rows], device=self._config.device)
        ids = pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=pad or 0)
        ids = ids.to(self._config.device)
        mask = torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]
        logits = self._model(input_ids=ids, attention_mask=mask.long()).logits
        if of_tokens:
            logits = logits[torch.arange(len(rows), device=ids.device), lengths - 1]
        return [float(score) for score in logits.flatten()]


def _folder(path: Path) -> Path:
    """Return the model folder that is meant."""
    if not (path / "config.json").exists() and (latest := RunFolder(path).latest()) is not None:
        return latest / "model"
    if not path.is_dir():
        raise ModelError(
            f"reward model {str(path)!r} does not exist",
            why="it is a local folder in Hugging Face format, or the folder of a run",
            fix="train one with kind: reward_model, and name its folder in rollout.reward.options.path",
        )
    return path


def _load(folder: Path, config: ScoredConfig) -> Any:  # Any: transformers is not typed here
    import transformers

    architecture = str((read_json(folder / "config.json").get("architectures") or [""])[0])
    head = next((name for ending, name in _HEADS.items() if architecture.endswith(ending)), None)
    if head is None:
        raise ModelError(
            f"{folder} holds a {architecture or 'model of unknown kind'}, which has no scalar head",
            why=f"a reward model ends with {' or '.join(_HEADS)}",
            fix="train one with kind: reward_model",
        )
    model = getattr(transformers, head).from_pretrained(
        folder, dtype=getattr(torch, config.dtype), use_safetensors=True, trust_remote_code=False
    )
    if model.config.num_labels != 1:
        raise ModelError(
            f"{folder} gives {model.config.num_labels} numbers to a token", why="a reward is one", fix="num_labels: 1"
        )
    return model.to(config.device).eval()
