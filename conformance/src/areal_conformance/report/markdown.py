"""report.md: for a README, and for reading in a terminal.

Knows: markdown.
Does not know: anything the record does not hold.
"""

from __future__ import annotations

from collections.abc import Sequence

from areal_conformance.outcome import Outcome
from areal_conformance.report.parts import (
    FOOTER,
    LEVELS,
    ORDER,
    areas,
    by_level,
    facts,
    law_line,
    stand_ins,
    tables,
    title,
)
from areal_conformance.run.record import Record, Row


def markdown(record: Record) -> str:
    """Return the report as markdown. Its first line gives the denominators."""
    parts = [
        record.line,
        f"# Conformance: {title(record)}",
        f"**Verdict: {record.verdict}**",
        f"**{said}**" if (said := stand_ins(record)) else "",
        _table(
            ("", ""), [(name, _code(value) if name == "command" else value) for name, value in facts(record).items()]
        ),
        *_levels(record),
        *_tables(record, "Figures", "Profiles"),
        *_attention(record),
        *_checks(record),
        *_tables(record, "Claims", "Models", "Tolerances of the adapter", "Ledger"),
        "## Versions",
        _table(("distribution", "version"), list(record.versions.items())),
        f"*{FOOTER}*",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _levels(record: Record) -> list[str]:
    found = by_level(record.checks)
    used = [outcome for outcome in ORDER if any(counts[outcome] for counts in found.values())]
    rows = [
        (f"{level} {LEVELS[level]}", *(str(counts[outcome] or "") for outcome in used))
        for level, counts in found.items()
    ]
    return ["## Levels", _table(("level", *used), rows)] if rows else []


def _tables(record: Record, *headings: str) -> list[str]:
    """Return these tables; names are code, but for those nobody can type."""
    parts = []
    for heading in headings:
        head, rows = tables(record)[heading]
        named = rows if heading in ("Figures", "Profiles") else [(_code(name), *rest) for name, *rest in rows]
        parts += [f"## {heading}", _table(head, named)] if rows else []
    return parts


def _attention(record: Record) -> list[str]:
    """Return what did not simply pass, with its message."""
    wanted = [outcome for outcome in ORDER if outcome not in (Outcome.PASS, Outcome.SKIP)]
    rows = [row for outcome in wanted for row in record.checks if row.outcome is outcome]
    parts = [f"### {_code(row.id)}: {row.outcome}\n\n{_told(record, row)}" for row in rows]
    notes = [f"- {_code(row.id)}: {note}" for row in record.checks for note in row.notes]
    notes += [f"- {note}" for note in record.notes]
    return [*(["## Needs attention", *parts] if parts else []), *(["## Notes", "\n".join(notes)] if notes else [])]


def _told(record: Record, row: Row) -> str:
    message = row.message or ("it has no outcome" if row.missing else "")
    return f"{row.title} ({law_line(record, row.law)})\n\n```text\n{message.replace('```', chr(39) * 3)}\n```"


def _checks(record: Record) -> list[str]:
    parts = ["## Checks"]
    for area, rows in areas(record.checks).items():
        lines = [(_code(row.id), row.title, f"{row.law}", f"{row.level}", _outcome(row), _time(row)) for row in rows]
        parts += [f"### {area}", _table(("check", "claim", "law", "level", "outcome", "s"), lines)]
    return parts if len(parts) > 1 else []


def _outcome(row: Row) -> str:
    shown = str(row.outcome) if row.outcome is Outcome.PASS else f"**{row.outcome}**"
    return shown + (" (provisional)" if row.provisional else "")


def _time(row: Row) -> str:
    return f"{row.seconds:.2f}" if row.seconds else ""


def _code(text: str) -> str:
    return f"`{text}`"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(text: str) -> str:
    return str(text).replace("\n", " ").replace("|", "\\|")
