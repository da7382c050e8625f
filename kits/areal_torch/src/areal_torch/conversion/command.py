"""`areal convert`: a checkpoint from one format into another.

Knows: arguments, and how progress looks on a terminal and in a log.
Does not know: formats (`areal_torch.conversion`).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from areal_torch.conversion.convert import Progress
from areal_torch.conversion.convert import convert as run
from areal_torch.conversion.formats import detected, formats, named

_LOG_EVERY_S = 10.0


def convert(
    source: Path,
    target: Path,
    /,
    *,
    to: Annotated[str, Parameter(help="hf, dcp, or a format a plugin adds (megatron)")],
    dtype: Annotated[
        Literal["", "float32", "bfloat16", "float16"], Parameter(help="cast weights; default: unchanged")
    ] = "",
    like: Annotated[
        Path | None, Parameter(help="a folder with config.json and tokenizer, if the source has none")
    ] = None,
    prefix: Annotated[str, Parameter(help='prefix of the model\'s tensor names in a dcp, for example "model."')] = "",
) -> int:
    """Convert a checkpoint between formats; every tensor is read back and compared.

    Run it again after an interruption: files that are whole are not written again.

    Args:
        source: The checkpoint's folder; its format is detected.
        target: A new folder.
    """
    known = formats(prefix)
    wanted, given = named(to, known), detected(source, known)
    begun = time.monotonic()
    with _progress() as tell:
        done = run(source, given.open(source), target, wanted, dtype=dtype, like=like, tell=tell)
    again = f", {done.resumed} files were there already" if done.resumed else ""
    print(
        f"{given.name} -> {wanted.name}: {done.num_tensors} tensors, {done.num_bytes / 1e9:.2f} GB, all equal{again}, "
        f"{time.monotonic() - begun:.0f} s: {done.folder}"
    )
    return 0


@contextmanager
def _progress() -> Iterator[Callable[[Progress], None]]:
    """Give a bar on a terminal, a line now and then elsewhere."""
    if not sys.stderr.isatty():
        last = time.monotonic()

        def line(progress: Progress) -> None:
            nonlocal last
            if time.monotonic() - last >= _LOG_EVERY_S:
                last = time.monotonic()
                print(f"{progress.stage}: {progress.done / max(progress.total, 1):.0%}", file=sys.stderr)

        yield line
        return
    from rich.console import Console

    with Bar(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    ) as bar:
        tasks = {stage: bar.add_task(stage, total=None) for stage in ("write", "compare")}
        yield lambda progress: bar.update(tasks[progress.stage], completed=progress.done, total=progress.total)
