"""Whole runs: a script without a guard, a running event loop, the kernel of a notebook."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

import areal_core as areal
from areal_torch.testing.models import make_tiny_model

SCRIPT = """
from dataclasses import dataclass

import areal_core as areal


@dataclass
class Share:
    right: int
    of: int


def share(found, wanted):
    return Share(sum(a == b for a, b in zip(found, wanted)), len(wanted))


def letters_right(completions, answer, **columns):
    shares = [share(*each) for each in zip(completions, answer)]
    return [each.right / each.of for each in shares]


rows = [{"prompt": f"{word}>", "answer": word + word} for word in ("sun", "moon", "tree", "leaf") * 16]
trainer = areal.Trainer("model", reward=letters_right, data=rows, steps=STEPS, device="cpu", name="mine", KEYS)
"""
SMALL = 'rollout={"prompts_per_step": 2, "group_size": 4, "sampling": {"max_new_tokens": 8}}'

SHORT = {"sampling": {"max_new_tokens": 8}}


def script(steps: int, *lines: str) -> str:
    return "\n".join([SCRIPT.replace("STEPS", str(steps)).replace("KEYS", SMALL), *lines])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a tiny model in it."""
    make_tiny_model(tmp_path / "model")
    return tmp_path


@pytest.mark.slow
def test_a_script_trains_without_a_guard_and_its_yaml_is_the_same_run(folder: Path) -> None:
    """A function of lists that reads a class of the script, twice: by `train`, and by `areal train` on what it left."""
    after = ["result = trainer.train()", "trainer.to_yaml('run.yaml')", "print(result.model, len(result.metrics))"]
    (folder / "train.py").write_text(script(2, *after, "assert trainer.episodes().count() >= 16"))
    done = subprocess.run([sys.executable, "train.py"], cwd=folder, capture_output=True, text=True)

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith(f"{folder}/runs/mine/checkpoints/step-000002/model 2\n")
    assert (folder / "runs/mine/task/reward.py").is_file()
    areal_command = [sys.executable, "-m", "areal_core.cli.main", "train", "run.yaml", "out=runs/again", "--quiet"]
    again = subprocess.run(areal_command, cwd=folder, capture_output=True, text=True)
    assert again.returncode == 0, again.stdout + again.stderr
    rewards = [
        areal.Trainer.from_yaml(folder / "run.yaml", [f"out={folder}/runs/{name}"]) for name in ("mine", "again")
    ]
    assert len({str(each.result.metrics.column("reward")[:1]) for each in rewards}) == 1


@pytest.mark.slow
def test_a_run_works_inside_a_running_loop_and_refuses_its_folder_twice(folder: Path) -> None:
    """As in a notebook; an earlier run is moved aside on request, with the files of its task."""

    async def main() -> list[int]:
        made = areal.Trainer(
            str(folder / "model"), reward="exact_match", data=[{"prompt": "a>", "answer": "b"}], steps=1,
            device="cpu", out=folder / "run", rollout={"prompts_per_step": 1, "group_size": 2, **SHORT},
        )  # fmt: skip
        first = made.train(quiet=True)
        with pytest.raises(areal.ArealError, match="already holds a run"):
            made.train(quiet=True)
        second = made.train(quiet=True, archive=True)
        return [len(each.metrics) for each in (first, second)]

    assert asyncio.run(main()) == [1, 1]
    assert (folder / "run.1/task/rows.jsonl").is_file() and (folder / "run/task/rows.jsonl").is_file()


def cells(folder: Path, *sources: str) -> list[Any]:
    """Run cells in a kernel of their own, and return them with their outputs."""
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    client = NotebookClient(book, timeout=240, kernel_name="python3", resources={"metadata": {"path": str(folder)}})
    return list(client.execute().cells)


def shown(cell: Any) -> str:
    return str([output.get("data", output.get("text", output.get("evalue", ""))) for output in cell.outputs])


@pytest.mark.slow
def test_a_notebook_trains_shows_progress_and_hears_an_interrupt(folder: Path) -> None:
    """A lambda of a cell is the reward; progress is one output that is replaced; an interrupt saves the run."""
    book = [
        script(2),
        "result = trainer.train()\nresult",
        "result.curve",
        "again = areal.Trainer('model', reward=lambda completion: len(completion) / 8, data=rows, steps=100000, "
        f"device='cpu', name='long', {SMALL})\n"
        "import os, signal, threading, pathlib\n"
        "def after_a_step():\n"
        "    while not (pathlib.Path('runs/long/metrics.jsonl').exists() and again.result.metrics):\n"
        "        threading.Event().wait(0.05)\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "threading.Thread(target=after_a_step).start()\n"
        "try:\n"
        "    again.train()\n"
        "except KeyboardInterrupt as error:\n"
        "    print('interrupted:', error)\n",
        "again.result",
    ]
    made = cells(folder, *book)

    assert "step 2 of 2" in shown(made[1]) and "polyline" in shown(made[1])
    assert len([output for output in made[1].outputs if output.output_type == "display_data"]) == 1
    assert "image/png" in shown(made[2])
    assert "interrupted: step-" in shown(made[3]) and "areal train --resume" in shown(made[3])
    assert "stopped" in shown(made[4])


@pytest.mark.slow
def test_a_run_on_rows_is_a_trainer_of_another_kind(folder: Path) -> None:
    """No reward and no engine that generates: rows with answers, and the options of the kind."""
    rows = [{"prompt": f"{word}>", "completion": word[::-1]} for word in ("sun", "moon", "tree", "leaf") * 8]
    trainer = areal.Trainer(
        folder / "model",
        data=rows,
        kind="sft",
        options={"batch_size": 8, "epochs": 1},
        out=folder / "run",
        device="cpu",
    )

    result = trainer.train(quiet=True)

    assert "sft by reference:d1" in repr(trainer)
    assert result.finished and len(result.metrics) == 4
    assert result.curve.name == "loss" and len(result.curve.values) == 4
    assert "4 steps, loss" in repr(result)
