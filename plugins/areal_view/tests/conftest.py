"""Runs that never happened, written as a run writes them: journals, and episodes through the store itself."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from starlette.testclient import TestClient
from tokenizers import Tokenizer, decoders, models

from areal_core.contract.data import StopReason, Trajectory
from areal_core.contract.workflow import RewardResult
from areal_core.plugins.episodes import EndedEpisode, Ending, Fate
from areal_episodes.schema import FILE
from areal_episodes.store import Store
from areal_view.app import make_app
from areal_view.runs import Runs

TOKEN = "a-token-of-these-tests"
BEGAN = 1_760_000_000.0
STEP_S = 2.0
HOSTILE = "</script><script>window.broken=1</script><img src=x onerror=window.broken=1>\x1b[31m\u202e"


class Letters:
    """A tokenizer whose token n is the letter number n."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [ord(letter) for letter in text]

    def decode(self, token_ids: Any, *, skip_special_tokens: bool = False) -> str:
        return "".join(map(chr, token_ids))

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any:
        raise NotImplementedError


class MadeRun:
    """A run folder that tests write into."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.event("run_started", at=0.0, train_backend="fsdp:d1", infer_backend="reference:d2")

    def steps(self, first: int, last: int, **more: float) -> None:
        """Write metrics: a reward that rises, two seconds a step of which half is waiting."""
        for step in range(first, last + 1):
            record = {
                "time": BEGAN + STEP_S * step,
                "step": step,
                "seconds": STEP_S,
                "wall_s": STEP_S * step,
                "reward": 1 / (1 + math.exp(-(step - 10) / 4)),
                "loss": math.sin(step) / 10,
                "tokens_generated": 100 * step,
                "wait_s": 1.0,
                "train_s": 0.6,
                "sync_s": 0.4,
                "eval_s": 0.0,
                **more,
            }
            self.line("metrics.jsonl", record)

    def event(self, kind: str, at: float, **fields: Any) -> None:
        """Write an event, `at` seconds after the beginning."""
        self.line("events.jsonl", {"time": BEGAN + at, "kind": kind, **fields})

    def line(self, name: str, record: Mapping[str, Any]) -> None:
        """Write one line."""
        with (self.folder / name).open("a") as file:
            file.write(json.dumps(record) + "\n")

    def episodes(self, num_groups: int, *, prompt: str = "ab", answer: str = "xyz", **changes: Any) -> None:
        """Write groups of four; group n was trained in step n + 1, its rewards are 0, 0.25, 0.5, 0.75."""
        with _open(self.folder) as store:
            for index in range(num_groups):
                for member in range(4):
                    store.ended(_ended(index, member, prompt, f"{answer}{member}", changes))
                store.settled(index, 0, Fate.TRAINED, index + 1)

    def tokenizer(self) -> None:
        """Put a tokenizer of single letters where a run says its model lies."""
        model = self.folder / "model"
        model.mkdir()
        made = Tokenizer(models.WordLevel({chr(number): number for number in range(256)}, unk_token=" "))
        made.decoder = decoders.Fuse()
        made.save(str(model / "tokenizer.json"))
        (self.folder / "config.yaml").write_text(json.dumps({"model": {"path": str(model)}}))


@contextmanager
def _open(folder: Path) -> Iterator[Store]:
    store = Store(folder / FILE, keep=10_000, tokenizer=Letters(), tell=lambda kind, **fields: None)
    try:
        yield store
    finally:
        store.close()


def _ended(index: int, member: int, prompt: str, answer: str, changes: Mapping[str, Any]) -> EndedEpisode:
    whole: dict[str, Any] = {
        "ending": Ending.FINISHED,
        "task_id": f"train/0/{index}",
        "task_index": index,
        "attempt": 0,
        "member": member,
        "version": max(0, index - 1),
        "row": {"prompt": prompt},
        "trajectories": [trajectory(prompt, answer, version=max(0, index - 1), reward=member / 4)],
        "metrics": {"correct": member / 4},
        "reward": RewardResult(value=member / 4),
        "started": BEGAN + STEP_S * index,
        "seconds": 1.5,
        "replica": f"rollout/{member % 2}",
    }
    return EndedEpisode(**{**whole, **changes})


def trajectory(prompt: str, answer: str, *, version: int = 3, reward: float = 0.0, **more: Any) -> Trajectory:
    """Return one turn; log-probs fall from -0.01 to -5, the last token is one version newer."""
    length, given = len(prompt + answer), len(prompt)
    own = torch.arange(length) >= given
    versions = torch.where(own, version, -1).to(torch.int32)
    versions[-1] = version + 1
    logprobs = torch.zeros(length)
    logprobs[given:] = torch.linspace(-0.01, -5.0, length - given)
    return Trajectory(
        input_ids=torch.tensor([ord(letter) for letter in prompt + answer]),
        loss_mask=own,
        logprobs=logprobs,
        versions=versions,
        reward=reward,
        stop_reason=StopReason.STOP,
        **more,
    )


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[[str], MadeRun]:
    """Return what makes a run in the folder `runs`."""
    return lambda name: MadeRun(tmp_path / "runs" / name)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    """A browser that has the cookie already."""
    (tmp_path / "runs").mkdir(exist_ok=True)
    opened = TestClient(make_app(tmp_path / "runs", token=TOKEN), base_url="http://127.0.0.1:8000")
    opened.cookies.set("areal_view", TOKEN)
    yield opened
    opened.close()


@pytest.fixture
def run_ids(tmp_path: Path) -> Callable[[], Sequence[str]]:
    """Return the ids of the runs there are, by name."""
    return lambda: [run.id for run in sorted(Runs(tmp_path / "runs").all(), key=lambda run: run.name)]


@pytest.fixture
def made_trajectory() -> Callable[..., Trajectory]:
    """Return what makes one trajectory."""
    return trajectory


@pytest.fixture
def hostile() -> str:
    """Scripts, a picture that fails, terminal escapes, text from right to left."""
    return HOSTILE


@pytest.fixture
def token() -> str:
    """The token of the page."""
    return TOKEN
