"""What a program hands over in memory, as files and the keys of a run that name them.

    {"data": [{"prompt": ...}], "reward": letters_right}  ->  rows.jsonl, reward.py
                                                              {"data": {"name": "jsonl", ...}, "imports": [...], ...}

Knows: rows, data sets of the library `datasets`, functions; names of files and of what is registered.
Does not know: where the files lie (`InFolder` stands for that), or how a run starts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from attrs import field, frozen

from areal_core.contract.errors import ConfigError, DatasetError
from areal_core.plugins.marks import marks_of
from areal_core.plugins.registry import default_registry
from areal_trainer.source import Source

Keys = dict[str, Any]  # Any: what a run's yaml may hold


@frozen
class InFolder:
    """The path of a file of the task, wherever the folder will be; `then` follows it, as in `agent.py:run`."""

    name: str
    then: str = ""


@frozen(kw_only=True)
class Task:
    """Keys of a run, and the files they name, as functions that write them."""

    keys: Keys = field(factory=dict)
    files: Mapping[str, Callable[[Path], object]] = field(factory=dict)

    def within(self, folder: Path) -> Keys:
        """Return the keys with the files in a folder."""
        placed = _placed(self.keys, folder)
        assert isinstance(placed, dict)
        return placed

    def write(self, folder: Path) -> None:
        """Write the files; there is no folder if there are none."""
        for name, write in self.files.items():
            folder.mkdir(parents=True, exist_ok=True)
            write(folder / name)


def merged(first: Mapping[str, Any], second: Mapping[str, Any], path: str = "") -> Keys:
    """Return both, key by key. Any: as `Keys`.

    Raises:
        ConfigError: both say something of the same key.
    """
    found = dict(first)
    for key, value in second.items():
        mine = found.get(key)
        if isinstance(mine, Mapping) and isinstance(value, Mapping):
            found[key] = merged(mine, value, f"{path}{key}.")
        elif key in found and mine != value:
            raise ConfigError(
                f"{path}{key} is given twice",
                why=f"as {mine!r} and as {value!r}",
                fix="give it as an argument of its own, or among the keys of the run",
            )
        else:
            found[key] = value
    return found


def data_task(data: Any, file: str) -> Task:
    """Return a data set as a task whose keys are those under `data`. Any: rows, a data set, a name, a path, keys.

    Raises:
        DatasetError: rows are no rows, or hold what a file of JSON cannot.
    """
    if isinstance(data, Mapping):
        return Task(keys=dict(data))
    if isinstance(data, str | Path):
        return Task(keys=_named(str(data)))
    if callable(data):
        data = data()
    if hasattr(data, "save_to_disk") and hasattr(data, "column_names"):
        name = f"{file}-dataset"
        return Task(
            keys={"name": "hub", "options": {"path": InFolder(name)}},
            files={name: lambda path: data.save_to_disk(str(path))},
        )
    lines = [_line(row, number) for number, row in enumerate(_rows(data))]
    if not lines:
        raise DatasetError("there are no rows", why="data is empty", fix="give at least one row with a 'prompt'")
    name = f"{file}.jsonl"
    return Task(
        keys={"name": "jsonl", "options": {"path": InFolder(name)}},
        files={name: lambda path: path.write_text("".join(lines), encoding="utf-8")},
    )


def reward_task(reward: Any) -> tuple[Keys, Task]:
    """Return the keys under `rollout.reward`, and the user's file that brings it. Any: a function, a name or keys.

    Raises:
        ConfigError: it does not travel; see `Source`.
    """
    if isinstance(reward, Mapping):
        return dict(reward), Task()
    if isinstance(reward, str):
        return {"name": reward}, Task()
    source = Source(reward, "the reward function")
    marks = [mark.name for mark in marks_of(reward) if mark.role == "reward"]
    text = [f'"""The reward function {source.name} of a run, as it was when the run began."""\n\n', source.text]
    name = marks[0] if marks else _free(source.name)
    if not marks or f"import {source.name}" in source.text:
        text.append(_REGISTERED.format(name=name, function=source.name))
    file = "reward.py"
    return {"name": name}, Task(
        keys={"imports": [InFolder(file)]},
        files={file: lambda path: path.write_text("".join(text), encoding="utf-8")},
    )


def agent_task(agent: Any) -> Task:
    """Return an agent as a task. Any: a function, FILE.py:FUNCTION, or options of the workflow `agent`.

    Raises:
        ConfigError: it does not travel; see `Source`.
    """
    if isinstance(agent, str | Mapping):
        return Task(keys={"rollout": {"agent": agent if isinstance(agent, str) else dict(agent)}})
    source = Source(agent, "the agent", awaited=True)
    text = f'"""The agent {source.name} of a run, as it was when the run began."""\n\n{source.text}'
    return Task(
        keys={"rollout": {"agent": InFolder("agent.py", f":{source.name}")}},
        files={"agent.py": lambda path: path.write_text(text, encoding="utf-8")},
    )


_REGISTERED = '''

from attrs import frozen as _frozen

from areal_core import reward as _reward


@_frozen
class _Options:
    """It takes none."""


@_reward("{name}", config=_Options)
def _build(_options):
    return {function}
'''


def _free(name: str) -> str:
    """Return a name that no installed reward has."""
    return f"{name}_" if name in default_registry().names("reward") else name


def _named(data: str) -> Keys:
    """Return the keys of a data set that is named: a registered one, a file, a folder, or one of the hub."""
    if data in default_registry().names("dataset"):
        return {"name": data}
    path = Path(data).expanduser()
    if path.suffix in (".jsonl", ".json"):
        return {"name": "jsonl", "options": {"path": str(path.absolute())}}
    if path.is_dir():
        return {"name": "hub", "options": {"path": str(path.absolute())}}
    if data.count("/") == 1 and not data.startswith((".", "/", "~")):
        return {"name": "hub", "options": {"path": data}}
    raise DatasetError(
        f"there is no data set {data!r}",
        why="it is no registered name, no file of JSON lines, no folder, and no name on the hub such as openai/gsm8k",
        fix="areal backends --role dataset lists the names; or give rows",
    )


def _rows(data: Any) -> Iterable[Any]:  # Any: whatever the program gave
    if not isinstance(data, Iterable) or isinstance(data, bytes):
        raise DatasetError(
            f"data is a {type(data).__name__}",
            why="rows are a list of mappings",
            fix='for example data=[{"prompt": "2 + 2 =", "answer": "4"}]',
        )
    return data


def _line(row: Any, number: int) -> str:  # Any: whatever the program gave
    if not isinstance(row, Mapping):
        raise DatasetError(f"row {number} is a {type(row).__name__}", why="a row is a mapping with a 'prompt'")
    for column, value in row.items():
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise DatasetError(
                f"row {number}: column {str(column)!r} cannot be written as JSON",
                why=str(error),
                fix="give plain values; or a data set of the library `datasets`, which is kept in a folder",
            ) from None
    return json.dumps({str(name): value for name, value in row.items()}, ensure_ascii=False) + "\n"


def _placed(value: object, folder: Path) -> object:
    if isinstance(value, InFolder):
        return f"{folder / value.name}{value.then}"
    if isinstance(value, Mapping):
        return {key: _placed(item, folder) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_placed(item, folder) for item in value]
    return str(value) if isinstance(value, Path) else value
