"""Edits that a person wrote, in place of those that operators make: a fault that somebody had, say.

    [[edit]]
    module = "areal_mine.engine"
    old = "loss / total"
    new = "loss / rows"
    why = "a mean over rows makes short answers count more"

`old` is text of the module's file that stands there once, of any number of lines; `new` takes its place.

Knows: the files, and which edits cannot be meant.
Does not know: what becomes of one; it is a mutant like any other.
"""

from __future__ import annotations

import ast
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from attrs import frozen

from areal_conformance.mutate.mutants import Key, Mutant
from areal_conformance.mutate.source import Change, Source, one_line
from areal_core.contract.errors import ConfigError

OPERATOR = "edit"
_KEYS = ("module", "old", "new", "why")
_MAX_SHOWN = 60


@frozen(kw_only=True)
class Edit:
    """One entry. Example: Edit(module="areal_mine.engine", old="a / b", new="a", why="a mean", place="1 of x.toml")"""

    module: str
    old: str
    new: str
    why: str = ""
    place: str = ""
    """Where it was written, for errors."""


def read_edits(paths: Iterable[Path]) -> list[Edit]:
    """Read files, and the `*.toml` of folders in order of their names.

    Raises:
        ConfigError: there is no such file, none in a folder, or an entry is wrong; says which.
    """
    return [edit for path in paths for file in _files(path) for edit in _entries(file)]


def mutants_from(edits: Iterable[Edit], sources: Mapping[str, Source]) -> list[Mutant]:
    """Return the mutants that edits make, in their order.

    Raises:
        ConfigError: one is of no module among `sources`, does not apply, does not compile or changes nothing.
    """
    found: list[Mutant] = []
    seen: Counter[tuple[str, ...]] = Counter()
    for edit in edits:
        source = sources.get(edit.module)
        if source is None:
            raise _wrong(
                edit,
                f"there is no module {edit.module!r} to change",
                "write the name as it is imported, of a module with Python source that is no manifest and no adapter",
            )
        change = _change(edit, source)
        words = (source.shown, source.qualname(change.node), OPERATOR, change.before, change.after)
        seen[words] += 1
        path, function, operator, before, after = words
        key = Key(path=path, function=function, operator=operator, before=before, after=after, occurrence=seen[words])
        line = source.text[: change.start].count(b"\n") + 1
        found.append(Mutant(key=key, module=edit.module, line=line, change=change, why=edit.why))
    return found


def _files(path: Path) -> list[Path]:
    found = sorted(path.glob("*.toml")) if path.is_dir() else [path]
    if not found or not all(file.is_file() for file in found):
        why = "the folder has no *.toml" if path.is_dir() else "there is no such file"
        raise ConfigError(f"--edits {path}: {why}", fix="write a file of [[edit]] tables, or a folder of such files")
    return found


def _entries(path: Path) -> Iterator[Edit]:
    try:
        entries = tomllib.loads(path.read_text(encoding="utf-8")).get("edit", [])
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path} cannot be read", why=str(error), fix="it is TOML, of [[edit]] tables") from error
    if not entries or not isinstance(entries, list):
        raise ConfigError(f"{path} has no edit", why="it has no [[edit]] table", fix="write module, old, new and why")
    for number, entry in enumerate(entries, 1):
        yield _entry(f"edit {number} of {path}", entry)


def _entry(place: str, entry: object) -> Edit:
    told = entry if isinstance(entry, dict) else {}
    unfit = sorted(name for name, value in told.items() if name not in _KEYS or not isinstance(value, str))
    missing = [name for name in ("module", "old", "new") if name not in told or (name != "new" and not told[name])]
    if unfit or missing:
        why = f"unknown or no text: {', '.join(unfit)}" if unfit else f"missing: {', '.join(missing)}"
        raise ConfigError(f"{place} is wrong", why=why, fix=f"an edit has {', '.join(_KEYS)}; why may be left out")
    return Edit(place=place, **told)


def _change(edit: Edit, source: Source) -> Change:
    """Return the whole lines that an edit changes, as one change of the statements that stand there."""
    times = source.text.count(edit.old.encode())
    if times != 1:
        where = "does not stand" if not times else f"stands {times} times"
        raise _wrong(
            edit,
            f"`old` {where} in {source.path}: {_short(edit.old)}",
            "copy it from that file" if not times else "write more of the lines around it",
        )
    start = source.text.index(edit.old.encode())
    end = start + len(edit.old.encode())
    text = source.text[:start] + edit.new.encode() + source.text[end:]
    _check(edit, source, text)
    first, last = (source.text[:at].count(b"\n") for at in (start, end - 1))
    return _spanning(source, text, first, last)


def _check(edit: Edit, source: Source, text: bytes) -> None:
    try:
        tree = ast.parse(text)
        compile(text, str(source.path), "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        raise _wrong(edit, f"{edit.module} does not compile with it: {error}", "mend `new`") from error
    if ast.dump(tree) == ast.dump(source.tree):
        raise _wrong(edit, f"it changes nothing that runs: {_short(edit.new)}", "write another `new`")


def _spanning(source: Source, text: bytes, first: int, last: int) -> Change:
    """Return the whole lines that differ, one at least; `first` to `last` are those of `old`, counted from 0.

    Lines put in are looked at by what runs a line of `old` beside them; lines taken out by what runs them.
    """
    old, new = source.text.split(b"\n"), text.split(b"\n")
    shorter, above, below = min(len(old), len(new)), 0, 0
    while above < shorter - 1 and old[above] == new[above]:
        above += 1
    while below < shorter - above - 1 and old[-1 - below] == new[-1 - below]:
        below += 1
    start, end = above, len(old) - below
    if old[start:end] == new[len(new) - below - 1 : len(new) - below]:
        above, end = max(first, above - 1), min(end, last + 1)
    elif new[start : len(new) - below] == old[end - 1 : end]:
        end -= 1
    nodes = source.statements(above + 1, end)
    at = sum(len(line) + 1 for line in old[:start])
    old, new = old[start : len(old) - below], new[start : len(new) - below]
    return Change(
        start=at,
        end=at + len(b"\n".join(old)),
        text=b"\n".join(new).decode(),
        node=nodes[0],
        beside=tuple(nodes[1:]),
        before=one_line(b"\n".join(old).decode()) or "(nothing)",
        after=one_line(b"\n".join(new).decode()) or "(nothing)",
    )


def _short(text: str) -> str:
    line = one_line(text)
    return repr(line if len(line) <= _MAX_SHOWN else f"{line[: _MAX_SHOWN - 3]}...")


def _wrong(edit: Edit, why: str, fix: str) -> ConfigError:
    return ConfigError(f"{edit.place or 'an edit'} cannot be tried", why=why, fix=fix)
