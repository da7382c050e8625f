"""What a resumed run's configuration changes of the one the run had, and which keys must not change.

Knows: the rule.
Does not know: what a value does. That the data set holds the same rows is checked where it is opened.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from attrs import frozen

from areal_core.config.load import load_config
from areal_core.contract.errors import ArealError, RunFolderError
from areal_core.plugins.redact import redact
from areal_core.plugins.structure import unstructure
from areal_report.text import printable, shortened

_ORDER = "the order of the prompts depends on it: some would be trained on twice in an epoch and some never"
_ADAPTER = "the checkpoint holds the training state of other parameters"
FIXED: Mapping[str, str] = MappingProxyType(
    {
        "seed": _ORDER,
        "data.shuffle": _ORDER,
        "critic": "the checkpoint holds no training state of one",
        "actor.lora": _ADAPTER,
        "actor.lora.rank": _ADAPTER,
        "actor.lora.targets": _ADAPTER,
    }
)
"""Keys that must not change within a run, and why. A critic may go."""
_MOVED = "out"
"""Where the folder is called by another name now."""
_NOT_SET = "not set"
_MAX_VALUE = 200


@frozen(kw_only=True)
class Change:
    """One key. Example: Change(key="steps", was="100", now="400")"""

    key: str
    was: str
    now: str

    @property
    def fixed(self) -> bool:
        """Tell whether it is refused."""
        return self.key in FIXED and not (self.key == "critic" and self.now == "null")

    @property
    def told(self) -> str:
        """Return it for people."""
        was, now = (shortened(each, _MAX_VALUE).replace("\n", " ") for each in (self.was, self.now))
        return printable(f"{self.key}: {was} -> {now}")


def changes(before: Path, config: object) -> str:
    """Return what `config` changes of the configuration in a run's file, a key a line; empty if nothing.

    Args:
        config: a RunConfig, or the same as plain data. Secrets are told of neither.

    Raises:
        RunFolderError: a key changed that must not.
    """
    try:
        old = redact(unstructure(load_config(before)))
    except ArealError as error:
        return f"what changed since the run began is not known: {error}"
    found = list(_changes(old, redact(unstructure(config)), ""))
    if refused := [change for change in found if change.fixed]:
        others = "; ".join(change.told for change in found if not change.fixed)
        raise RunFolderError(
            f"run folder {before.parent} cannot be resumed with {'; '.join(change.told for change in refused)}",
            why="; ".join(dict.fromkeys(FIXED[change.key] for change in refused)),
            fix=f"give {' and '.join(change.key for change in refused)} the old value, or start a new run with out=DIR"
            + (f". The other changes are accepted: {others}" if others else ""),
        )
    return "\n  ".join(["changed since the run was started last:", *(each.told for each in found)]) if found else ""


def _changes(was: object, now: object, key: str) -> Iterator[Change]:
    if isinstance(was, Mapping) and isinstance(now, Mapping):
        for name in {**was, **now}:
            yield from _changes(was.get(name, _NOT_SET), now.get(name, _NOT_SET), f"{key}.{name}" if key else str(name))
    elif (old := _text(was)) != (new := _text(now)) and key != _MOVED:
        yield Change(key=key, was=old, now=new)


def _text(value: object) -> str:
    return value if value is _NOT_SET else json.dumps(value, ensure_ascii=False, default=str)
