"""Write metrics as TensorBoard event files, with torch's own writer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import frozen


@frozen(kw_only=True)
class TensorBoardConfig:
    """Where TensorBoard's files go."""

    folder: str = ""
    """Where event files go; empty means `tensorboard` in the run folder."""
    flush_s: int = 30
    """Seconds between writes."""


class TensorBoardLogger:
    """The logger `tensorboard`. Look at it with `tensorboard --logdir <run folder>`."""

    def __init__(self, config: TensorBoardConfig) -> None:
        self._config = config
        self._writer: Any = None  # Any: torch's writer, known only once imported

    def start(self, run: str, folder: Path, config: Mapping[str, Any], first_step: int) -> None:
        """Open the writer; beside events of an attempt before, it hides those of the steps that are made again."""
        from torch.utils.tensorboard import SummaryWriter

        where = Path(self._config.folder or folder / "tensorboard")
        self._writer = SummaryWriter(
            str(where),
            purge_step=first_step + 1 if any(where.glob("events.out.tfevents.*")) else None,
            flush_secs=self._config.flush_s,
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Add one scalar per number."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Flush and close."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
