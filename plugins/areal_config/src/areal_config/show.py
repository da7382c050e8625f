"""Keys in a terminal: one in full, or many as a table.

Knows: how wide a terminal is at least.
Does not know: which keys there are (`find`).
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from areal_config.find import repeats
from areal_config.keys import Key
from areal_config.meanings import first_sentence


def show_all(known: Sequence[Key], console: Console) -> None:
    """Print every key by section; a section that has the keys of an earlier one is told in one line."""
    twins = repeats(known)
    _print_table([key for key in known if not key.parent and not key.section], console)
    for section in (key for key in known if key.section):
        if any(section.path.startswith(f"{twin}.") for twin in twins):
            continue
        absent = " (null unless it is set)" if section.default is None else ""
        console.print(f"\n[bold]{escape(section.path)}[/]{absent}  {escape(first_sentence(section.meaning))}")
        if section.path in twins:
            console.print(f"  the keys of {twins[section.path]}", markup=False, highlight=False)
        else:
            _print_table([key for key in known if _holder(key) == section.path and not key.section], console)
    console.print("\nareal config KEY tells all of one key, areal config SECTION the keys of a section.")


def show_section(section: Key, inside: Sequence[Key], console: Console) -> None:
    """Print a section and everything in it."""
    console.print(f"[bold]{escape(section.path)}[/]  {escape(section.meaning)}")
    if section.default is None:
        console.print("It is null unless it is set.")
    _print_table([key for key in inside if _holder(key) == section.path and not key.section], console)
    for below in (key for key in inside if key.section):
        console.print(f"\n[bold]{escape(below.path)}[/]  {escape(first_sentence(below.meaning))}")
        _print_table([key for key in inside if _holder(key) == below.path and not key.section], console)


def show_options(title: str, known: Sequence[Key], console: Console) -> None:
    """Print the options of a plugin."""
    if not known:
        console.print(f"{title} takes no options.", markup=False)
        return
    console.print(f"[bold]{escape(title)}[/]")
    _print_table([key for key in known if not key.section], console)


def show_key(key: Key, console: Console) -> None:
    """Print all there is to say about one key."""
    console.print(f"[bold]{escape(key.path)}[/]")
    console.print(key.meaning, markup=False, highlight=False)
    rows = Table(box=None, pad_edge=False, show_header=False)
    rows.add_column(no_wrap=True)
    rows.add_column()
    rows.add_row("type", Text(key.type))
    if key.choices:
        rows.add_row("allowed", Text("\n".join(f"{value}: {told}" if told else value for value, told in key.choices)))
    if key.limits:
        rows.add_row("range", Text(key.limits))
    rows.add_row("default", Text(key.default_text or ("none: it must be set" if key.needed else "")))
    rows.add_row("yaml", Text(yaml_example(key)))
    rows.add_row("command", Text(f"areal train run.yaml {override_example(key)}"))
    console.print(rows, highlight=False)


def yaml_example(key: Key) -> str:
    """Return the key with an allowed value, as lines of a yaml."""
    words = key.path.split(".")
    lines, indent = [], ""
    for word in words[:-1]:
        listed = word.endswith("[]")
        lines.append(f"{indent}{word.removesuffix('[]')}:")
        indent += "  - " if listed else "  "
    lines.append(f"{indent}{words[-1]}: {example_value(key)}")
    return "\n".join(lines)


def override_example(key: Key) -> str:
    """Return the key with an allowed value, as an override."""
    value = example_value(key)
    holder, _, name = key.path.partition("[].")
    word = f"{holder}=[{{{name}: {value}}}]" if name else f"{key.path}={value}"
    return f"'{word}'" if set(value) & set(' []{}"') else word


_EXAMPLES = {"algorithm.preset": "dapo"}
"""Of keys that take a name, and not any."""


def example_value(key: Key) -> str:
    """Return an allowed value: the default, or one of its type where the default says little."""
    if key.path in _EXAMPLES:
        return _EXAMPLES[key.path]
    others = [value for value, _ in key.choices if value not in (key.default_text, "none")]
    if others:
        return others[0]
    if not key.needed and key.default not in (None, "", {}, []):
        return key.default_text
    first = key.type.partition(" ")[0]
    return {"text": "NAME", "integer": "1", "number": "0.5", "true": "true", "list": "[]"}.get(first, "{}")


def _holder(key: Key) -> str:
    return key.parent.removesuffix("[]")


def _print_table(known: Sequence[Key], console: Console) -> None:
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, min_width=22)
    table.add_column(max_width=14)
    table.add_column(max_width=12)
    table.add_column(ratio=1)
    for key in known:
        default = "(needed)" if key.needed else key.default_text
        table.add_row(Text(f"  {key.name}"), Text(default), Text(key.type), Text(first_sentence(key.meaning)))
    if known:
        console.print(table, highlight=False)
