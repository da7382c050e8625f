"""Any data set the `datasets` library can load: from the Hugging Face hub, or saved to a folder.

Knows: how to load one and shape its records.
Does not know: what the columns mean (`areal_tasks.datasets.shape`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attrs import evolve, frozen

from areal_core.contract.errors import DatasetError, EngineMissing
from areal_core.plugins.install import pip_install
from areal_tasks.datasets.rows import LazyRows
from areal_tasks.datasets.shape import ShapeConfig, check_columns, shaped


@frozen(kw_only=True)
class HubConfig(ShapeConfig):
    """Options of `hub`.

    Example: HubConfig(path="openai/gsm8k", name="main", split="train", prompt="{question}", answer_after="####")
    """

    path: str
    """A hub name, a folder `save_to_disk` wrote, or one of parquet, csv or json files."""
    name: str | None = None
    """The configuration, where the data set has several, for example main."""
    split: str = "train"
    """For example train, test, or train[:1000]."""
    revision: str | None = None
    """Branch, tag or commit of the hub's repository."""


SAVED = ("dataset_dict.json", "state.json")
"""Files that tell a folder `save_to_disk` wrote from a folder of parquet, csv or json files."""

GSM8K = HubConfig(
    path="openai/gsm8k",
    name="main",
    prompt="{question}",
    prompt_suffix="\nPlease reason step by step, and put your final answer within \\boxed{}.",
    answer_after="####",
)
"""Grade-school mathematics; score it with the reward `math_verify`."""


def gsm8k(split: str = "train", path: str = GSM8K.path) -> LazyRows:
    """Return GSM8K with the number after "####" as answer; `path` may be a folder on this machine."""
    return hub(evolve(GSM8K, split=split, path=path))


def hub(config: HubConfig) -> LazyRows:
    """Return the records as rows, shaped when asked for.

    Raises:
        EngineMissing: the `datasets` library is not installed.
        DatasetError: the data set or its split cannot be loaded or has no rows, lacks a column, or its first row
            cannot be read.
    """
    records = _records(config)
    check_columns(config, records.column_names, f"{config.path}[{config.split}]")
    size = min(config.limit or len(records), len(records))
    rows = LazyRows(size, lambda index: shaped(config, records[index], f"{config.path}[{config.split}]:{index}"))
    if size:
        _read_first(rows, config)
    return rows


def _read_first(rows: LazyRows, config: HubConfig) -> None:
    """Have a template or a file that does not fit told before a model loads."""
    try:
        rows[0]
    except DatasetError:
        raise
    except Exception as exc:  # whatever the library meets when it decodes an image or another file
        raise DatasetError(
            f"the first row of {config.path}[{config.split}] cannot be read",
            why=f"{type(exc).__name__}: {str(exc)[:500]}",
            fix="mend what its columns hold (images are decoded when a row is read), or leave the row out",
        ) from exc


def _records(config: HubConfig) -> Any:  # Any: the library is not typed here
    try:
        import datasets
    except ImportError as exc:
        raise EngineMissing(
            "the data set 'hub' needs the library `datasets`", why=str(exc), fix=pip_install("areal-tasks[hub]")
        ) from exc
    try:
        folder = Path(config.path).expanduser()
        if not any((folder / name).is_file() for name in SAVED):
            return datasets.load_dataset(config.path, config.name, split=config.split, revision=config.revision)
        stored = datasets.load_from_disk(str(folder))
    except Exception as exc:  # whatever the library meets in files that are not what they should be
        raise DatasetError(
            f"cannot load split {config.split!r} of the data set {config.path!r}",
            why=f"{type(exc).__name__}: {str(exc)[:500]}",
            fix="correct `data.options`; without the hub, give a folder written by Dataset.save_to_disk",
        ) from exc
    return _of_split(stored, config)


def _of_split(stored: Any, config: HubConfig) -> Any:  # Any: as above
    if not isinstance(stored, dict):
        return stored
    if config.split not in stored:
        raise DatasetError(f"{config.path} has no split {config.split!r}", why=f"there are {', '.join(sorted(stored))}")
    return stored[config.split]
