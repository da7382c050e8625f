"""report.html: one file that needs nothing else; filter by outcome, search by words.

Knows: markup.
Does not know: anything the record does not hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape

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
from areal_conformance.report.style import SCRIPT, STYLE
from areal_conformance.run.record import Record, Row
from areal_conformance.spec import link


def page(record: Record, notices: Sequence[str] = ()) -> str:
    """Return the report as a page; `notices` are what became known of it since, said before all else."""
    heading = escape(title(record))
    body = [
        f"<header><h1>{heading}</h1><span class='verdict {record.verdict}'>{record.verdict}</span></header>",
        *(f"<p class='card line'><b>{escape(notice)}</b></p>" for notice in notices),
        f"<p class=line>{escape(record.line)}</p>",
        f"<p class='card line'><b>{escape(said)}</b></p>" if (said := stand_ins(record)) else "",
        _picture(record.checks),
        _notes(record),
        "<h2>Checks</h2>",
        _tools(record.checks),
        *(_area(record, area, rows) for area, rows in areas(record.checks).items()),
        "<h2>About this run</h2>",
        _folded("What was checked with what", _pairs(facts(record)), opened=True),
        *(_folded(heading, _table(*columns)) for heading, columns in tables(record).items()),
        _folded("Versions", _pairs(record.versions)),
        f"<footer>{FOOTER}</footer>",
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{record.verdict}: {heading}</title><style>{STYLE}</style></head>"
        f"<body><main>{''.join(body)}</main><script>{SCRIPT}</script></body></html>\n"
    )


def _picture(rows: Sequence[Row]) -> str:
    """Draw one bar a level, as long as the level has checks."""
    found = by_level(rows)
    most = max((counts.total() for counts in found.values()), default=0)
    lines = []
    for level, counts in found.items():
        parts = "".join(
            f"<i class=o-{outcome} style='flex:{counts[outcome]}' title='{counts[outcome]} {outcome}'></i>"
            for outcome in ORDER
            if counts[outcome]
        )
        told = ", ".join(f"{counts[outcome]} {outcome}" for outcome in ORDER if counts[outcome])
        width = 100 * counts.total() / most
        lines.append(
            f"<span>level {level} {LEVELS[level]}</span>"
            f"<div class=bar role=img aria-label='{told}' style='width:{width:.1f}%'>{parts}</div><small>{told}</small>"
        )
    return f"<div class='card bars'>{''.join(lines)}</div>" if lines else ""


def _tools(rows: Sequence[Row]) -> str:
    counts = Counter(row.outcome for row in rows)
    buttons = "".join(
        f"<button data-outcome={outcome} aria-pressed=true><i class='dot o-{outcome}'></i>"
        f"{outcome} {counts[outcome]}</button>"
        for outcome in ORDER
        if counts[outcome]
    )
    field = "<input type=search placeholder='words of an id, a claim or a message' aria-label='search'>"
    return f"<div class=tools>{field}{buttons}<small id=shown></small></div>"


def _area(record: Record, area: str, rows: Sequence[Row]) -> str:
    laws = "".join(f"<p class=laws>{escape(law_line(record, law))}</p>" for law in sorted({row.law for row in rows}))
    ordered = sorted(rows, key=lambda row: (ORDER.index(row.outcome), row.id))
    inside = "".join(_check(record, row) for row in ordered)
    return f"<section class='card area'><h3>{escape(area)}</h3>{laws}{inside}</section>"


def _check(record: Record, row: Row) -> str:
    words = " ".join((row.id, row.title, row.message, f"law {row.law}", f"level {row.level}", row.tier, *row.claims))
    end = ", ".join(
        part
        for part in (
            str(row.outcome),
            "provisional" if row.provisional else "",
            f"level {row.level}",
            f"{row.seconds:.2f} s" if row.seconds else "",
        )
        if part
    )
    opened = " open" if row.outcome in ORDER[:4] else ""
    return (
        f"<details class=check data-outcome={row.outcome} data-text='{escape(words.lower())}'{opened}>"
        f"<summary><i class='dot o-{row.outcome}'></i><span><code>{escape(row.id)}</code>"
        f"<span class=claim>{escape(row.title)}</span></span><span class=end>{escape(end)}</span></summary>"
        f"<div class=more>{_more(record, row)}</div></details>"
    )


def _more(record: Record, row: Row) -> str:
    facts = {
        "law": law_line(record, row.law),
        "contract": link(row.spec) if row.spec else "",
        "tier": str(row.tier),
        "claims": ", ".join(row.claims),
        "ledger": row.known,
        "notes": "; ".join(row.notes),
        "numbers": ", ".join(f"{name} {value:.6g}" for name, value in row.numbers.items()),
    }
    message = f"<pre>{escape(row.message)}</pre>" if row.message else ""
    return message + _pairs({name: value for name, value in facts.items() if value})


def _notes(record: Record) -> str:
    notes = [*record.notes, *(f"{row.id}: {note}" for row in record.checks for note in row.notes)]
    lines = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return _folded(f"Notes ({len(notes)})", f"<ul>{lines}</ul>" if notes else "")


def _folded(heading: str, inside: str, *, opened: bool = False) -> str:
    if not inside:
        return ""
    return f"<details class=card{' open' if opened else ''}><summary>{escape(heading)}</summary>{inside}</details>"


def _pairs(lines: Mapping[str, str]) -> str:
    rows = "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in lines.items())
    return f"<table>{rows}</table>" if rows else ""


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{top}</tr>{body}</table>"
