"""A kind of device in one file: `paper`, which the CPU stands in for, and two backends that say they run on it.

    PAPER_DEVICES=4 areal train run.yaml imports=[examples/device/paper.py] device=paper --dry-run
    areal conformance run --backend paper --role device --import examples/device/paper.py
    areal conformance run --backend on_paper --role train --device paper --import examples/device/paper.py

A real device differs in what it says of itself, not in what is written: see docs/how-to/add-a-device.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from areal_core import Device, backend, device
from areal_core.contract import SeenDevice
from areal_reference.infer.config import ReferenceInferenceConfig
from areal_reference.manifest import INFER, TRAIN
from areal_reference.train.config import ReferenceTrainConfig

STAND_IN = "The CPU computed everything under the name `paper`. Left open: all that a device of its own would do."


def see(environ: Mapping[str, str]) -> Sequence[SeenDevice]:
    """Count what PAPER_DEVICES tells; a driver's files would be read here, as `areal_devices` does. No torch."""
    return [SeenDevice(id=str(number), name="sheet of paper") for number in range(int(environ.get("PAPER_DEVICES", 0)))]


@device("paper")
def paper() -> Device:
    """Sheets of paper: counted, given out, one worker each."""
    return Device(
        name="paper",
        vendor="nobody",
        torch_type="cpu",  # a real device: the type that torch calls it by
        see=see,
        visible_variables=("PAPER_VISIBLE_DEVICES",),
        collective="gloo",
        reductions=("sum", "product", "min", "max"),
        resource="PAPER",
        stand_in=STAND_IN,  # a real device: leave it out
    )


@backend(attrs.evolve(TRAIN, name="on_paper", devices=("paper",)), config=ReferenceTrainConfig)
def train_on_paper(config: ReferenceTrainConfig) -> Any:
    """The reference trainer. Imported when it is built: who counts devices has no torch. Any: a TrainEngine."""
    from areal_reference.train.engine import ReferenceTrainEngine

    return ReferenceTrainEngine(config)


@backend(attrs.evolve(INFER, name="on_paper", devices=("paper",)), config=ReferenceInferenceConfig)
def generate_on_paper(config: ReferenceInferenceConfig) -> Any:
    """The reference generator. Any: an InferenceEngine."""
    from areal_reference.infer.engine import ReferenceInferenceEngine

    return ReferenceInferenceEngine(config)
