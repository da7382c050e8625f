"""The keys of a run as a page of markdown: the reference of the documentation.

Knows: headings, tables.
Does not know: where the page lies, or what stands around it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from areal_config import find
from areal_config.keys import Key
from areal_config.names.name import Names
from areal_config.schema import plugin_options
from areal_core.contract.version import ROLES
from areal_core.plugins.registry import Registry


def run_page(known: Sequence[Key]) -> str:
    """Return the sections of a run, each a heading and a table; one that has the keys of an earlier one says so."""
    twins = find.repeats(known)
    lines = [*_table([key for key in known if not key.parent and not key.section])]
    for section in (key for key in known if key.section):
        if any(section.path.startswith(f"{twin}.") for twin in twins):
            continue
        absent = " `null` unless it is set." if section.default is None else ""
        lines += ["", f"## {section.path}", "", _cell(section.meaning) + absent, ""]
        if section.path in twins:
            lines.append(f"It has the keys of [`{twins[section.path]}`](#{_anchor(twins[section.path])}).")
        else:
            lines += _table([key for key in known if key.parent.removesuffix("[]") == section.path and not key.section])
    return "\n".join(lines) + "\n"


def options_page(registry: Registry) -> str:
    """Return the options of every plugin here that has some, role by role."""
    lines = []
    for role in ROLES:
        for name, cls in plugin_options(registry, role).items():
            known = [key for key in find.class_keys(cls) if not key.section]
            if known:
                lines += [f"### {role}: {name}", "", *_table(known, whole_path=True), ""]
    return "\n".join(lines)


def names_page(names: Names) -> str:
    """Return the names of another system as a table."""
    lines = ["| there | here | |", "|---|---|---|"]
    for theirs, name in names.items():
        ours = ", ".join(f"`{key}`" for key in name.ours) or "no equal"
        lines.append(f"| `{theirs}` | {ours} | {_cell(name.note)} |")
    return "\n".join(lines) + "\n"


def _table(known: Sequence[Key], *, whole_path: bool = False) -> Iterator[str]:
    if not known:
        return
    yield "| key | type | default | meaning |"
    yield "|---|---|---|---|"
    for key in known:
        default = "needed" if key.needed else f"`{key.default_text}`"
        allowed = [f"`{value}`" + (f" ({_cell(told)})" if told else "") for value, told in key.choices]
        kind = ", ".join(filter(None, (key.type, key.limits)))
        meaning = _cell(key.meaning) + (f" Allowed: {', '.join(allowed)}." if allowed else "")
        yield f"| `{key.path if whole_path else key.name}` | {_cell(kind)} | {_cell(default)} | {meaning} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").removesuffix("\n")


def _anchor(heading: str) -> str:
    return heading.replace(".", "").lower()
