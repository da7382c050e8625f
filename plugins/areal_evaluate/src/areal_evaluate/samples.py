"""The samples in an output folder: which there are, and whether more of the same may join them.

Knows: how a sample is named in the episode store, and the file that says what an evaluation was of.
Does not know: how samples are made (`run`), or what their rewards amount to (`summary`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import frozen

from areal_core.contract.errors import RunFolderError, StorageError, storage_errors
from areal_core.plugins.episodes import Ending
from areal_episodes import schema
from areal_episodes.reader import Filter, Reader

FILE = "evaluation.json"
"""In the output folder: what has to stay the same for `--resume`."""
_PREFIX = "eval"


@frozen
class SampleId:
    """One sample of one prompt. In the store its task is `eval/BENCHMARK/INDEX`."""

    benchmark: str
    index: int
    member: int

    @property
    def task_id(self) -> str:
        """Return the task as `areal episodes --task` takes it."""
        return f"{_PREFIX}/{self.benchmark}/{self.index}"


@frozen(kw_only=True)
class Sample:
    """What became of a sample; `reward` is None if the workflow rejected the row."""

    reward: float | None
    output_tokens: int
    truncated: bool


def read_samples(folder: Path) -> dict[SampleId, Sample]:
    """Return the samples a folder holds, those that failed left out; none without a store.

    Raises:
        StorageError: the store cannot be read.
    """
    if not (folder / schema.FILE).is_file():
        return {}
    found = {}
    with Reader(folder) as reader:
        for facts in reader.facts(Filter(kind="eval")):
            prefix, _, rest = str(facts["task_id"]).partition("/")
            benchmark, _, index = rest.rpartition("/")
            if prefix != _PREFIX or not benchmark or facts["outcome"] == Ending.FAILED:
                continue
            found[SampleId(benchmark, int(index), int(facts["member"]))] = Sample(
                reward=facts["reward"],
                output_tokens=int(facts["output_tokens"]),
                truncated=facts["stop"] == "length",
            )
    return found


def check_free(folder: Path, *, resume: bool) -> None:
    """Refuse a folder that holds samples nobody wants to add to, or none where somebody does.

    Raises:
        RunFolderError: says which.
    """
    there = (folder / FILE).is_file() and bool(read_samples(folder))
    if there and not resume:
        raise RunFolderError(
            f"output folder {folder} already holds an evaluation",
            why="its samples would be mixed up with new ones",
            fix="go on with it: --resume; or choose another folder with out=DIR",
        )
    if resume and not (folder / FILE).is_file():
        raise RunFolderError(
            f"output folder {folder} has no evaluation to resume",
            why=f"it holds no {FILE}",
            fix="leave out --resume, or name the folder with out=DIR",
        )


def agree(folder: Path, identity: Mapping[str, Any], *, resume: bool) -> None:
    """Write down what samples are of; on a resume check that it is what the folder's samples are of. Any: plain data.

    More samples per prompt and further benchmarks may come with a resume.

    Raises:
        RunFolderError: names the first thing that is another, and both values.
        StorageError: the file cannot be read or written.
    """
    path, identity = folder / FILE, json.loads(json.dumps(identity, default=str))
    before: dict[str, Any] = {}
    if resume:
        try:
            before = json.loads(path.read_text())
            benchmarks = before["benchmarks"]
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise StorageError(f"{path} cannot be read", why=str(error), fix="evaluate into another folder") from error
        pairs = [("", "model", before.get("model"), identity["model"])]
        for name in (name for name in identity["benchmarks"] if name in benchmarks):
            old, new = benchmarks[name], identity["benchmarks"][name]
            pairs += [(f" of benchmark {name!r}", key, old.get(key), value) for key, value in new.items()]
        for whose, key, old, new in pairs:
            if old != new:
                raise RunFolderError(
                    f"{key}{whose} is not what the samples in {folder} are of",
                    why=f"it is {new}, it was {old}",
                    fix="resume with the same settings, or choose another folder with out=DIR",
                )
        identity = {**identity, "benchmarks": {**benchmarks, **identity["benchmarks"]}}
    with storage_errors(path):
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(identity, indent=2))
        partial.replace(path)
