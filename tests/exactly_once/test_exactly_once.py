"""A sample of the enumeration; `python -m tests.exactly_once` runs all of it."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file

from areal_tasks.tiny import make_spell_model

from .enumeration import STEPS, Case, Enumeration, Mode
from .killed_run import CONTROLLER, CTRL_C, REPLICA, REWARD, TRAINER

pytestmark = pytest.mark.slow

SAMPLE = [
    (Mode.SYNCHRONOUS, CONTROLLER, "answer actor train_step #3"),
    (Mode.SYNCHRONOUS, TRAINER, "ask actor send_weights #4"),
    (Mode.SYNCHRONOUS, REWARD, "ask rollout generate #7"),
    (Mode.ASYNCHRONOUS, CONTROLLER, "ask actor save_state #1"),
    (Mode.ASYNCHRONOUS, REPLICA, "answer rollout receive_weights #3"),
    (Mode.ASYNCHRONOUS, CONTROLLER, "group #6"),
    (Mode.SYNCHRONOUS, CTRL_C, "ask actor send_weights #2"),
]
"""Between training and weights, within an update, within a checkpoint, while episodes wait."""


@pytest.fixture(scope="module")
def enumerations(tmp_path_factory: pytest.TempPathFactory) -> dict[Mode, Enumeration]:
    """One reference run per mode."""
    folder = tmp_path_factory.mktemp("exactly_once")
    model = make_spell_model(folder / "model", seed=1)
    return {mode: Enumeration(mode, model, folder / mode) for mode in Mode}


@pytest.mark.parametrize(("mode", "victim", "boundary"), SAMPLE)
def test_every_prompt_is_trained_once_whoever_is_killed_wherever(
    enumerations: dict[Mode, Enumeration], mode: Mode, victim: str, boundary: str
) -> None:
    """Each step is whole, the bound is kept, and a synchronous run has the bits of the one that nobody killed."""
    case = Case(mode=mode, victim=victim, boundary=boundary)
    assert case in list(enumerations[mode].cases())

    verdict = enumerations[mode].judge(case)

    assert verdict.faults == ()
    ends = victim in (CONTROLLER, CTRL_C)  # before the first checkpoint there is nothing to resume
    assert verdict.ending in (("resumed", "began anew") if ends else ("went on",))


def test_a_fault_is_seen(enumerations: dict[Mode, Enumeration]) -> None:
    """The judge tells of other weights, and of steps that are not there."""
    enumeration = enumerations[Mode.SYNCHRONOUS]
    run = enumeration._reference
    assert enumeration._faults(run) == []

    path = run / "checkpoints" / f"step-{STEPS:06d}" / "model" / "model.safetensors"
    original = load_file(path)
    other = enumeration._folder / "other"
    other.mkdir()
    for name in ("episodes.sqlite", "summary.json"):
        (other / name).write_bytes((run / name).read_bytes())
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (other / "metrics.jsonl").write_text("".join(lines[:-1]))
    (other / path.relative_to(run)).parent.mkdir(parents=True)
    name = next(iter(original))
    save_file({**original, name: torch.zeros_like(original[name])}, other / path.relative_to(run))

    assert [fault.split(":")[0] for fault in enumeration._faults(other)] == ["steps recorded", f"other bits in {name}"]
