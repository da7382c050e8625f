"""A static site of reports: one page that compares backends area by area, and a page for each report.

Nothing on it is fetched and nothing runs but the filter of a report's page: it can be served from any folder.

Knows: how reports are put beside each other.
Does not know: how one of them looks (`page`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from attrs import frozen

from areal_conformance.outcome import Outcome
from areal_conformance.report.badge import badge
from areal_conformance.report.page import page
from areal_conformance.report.parts import FOOTER, ORDER
from areal_conformance.report.seal import Seal, look_at
from areal_conformance.report.style import STYLE
from areal_conformance.run.record import Record, write_text
from areal_core.contract.errors import ConfigError, StorageError

_STYLE = """
main{max-width:none}.wide{overflow-x:auto}
.matrix{width:auto}.matrix th,.matrix td{padding:4px 10px;white-space:nowrap;overflow-wrap:normal}
.matrix th.area{writing-mode:vertical-rl;transform:rotate(180deg);text-align:left;vertical-align:bottom}
.matrix td.cell{text-align:center;font-variant-numeric:tabular-nums}
.cell i{display:block;height:4px;border-radius:2px;margin-top:2px}
.expired{color:var(--inconclusive)}.broken{color:var(--fail);font-weight:600}
a{color:var(--link)}
"""
_TOLD = ("verdict", "levels", "contract", "version", "commit", "suite", "made")


@frozen(kw_only=True)
class Entry:
    """One report of the site, and the folder of its page."""

    seal: Seal
    place: str

    @property
    def record(self) -> Record:
        """Return the report."""
        return self.seal.record


def write_site(folder: Path, site: Path) -> tuple[Path, int]:
    """Write the site of every `report.json` below a folder; return its first page and how many reports it holds.

    Raises:
        ConfigError: there is no report, or one that cannot be read.
        StorageError: the site cannot be written.
    """
    paths = [path for path in sorted(folder.rglob("report.json")) if not path.is_relative_to(site)]
    if not paths:
        raise ConfigError(f"there is no report.json below {folder}", fix="areal conformance run ... --report FOLDER")
    entries = [Entry(seal=look_at(path), place=_place(path.relative_to(folder))) for path in paths]
    for entry, path in zip(entries, paths, strict=True):
        own = site / entry.place
        write_text(own / "index.html", page(entry.record, _notices(entry.seal)))
        write_text(own / "badge.svg", badge(entry.record))
        write_text(own / "report.json", _read(path))  # unmodified: its hash is that of the file given
    first = site / "index.html"
    write_text(first, matrix(entries))
    return first, len(entries)


def matrix(entries: Sequence[Entry]) -> str:
    """Return the first page: a table for each role, a line for each backend, a column for each area of checks."""
    roles = dict.fromkeys(sorted(entry.record.subject.role for entry in entries))
    parts = [_role(role, [one for one in entries if one.record.subject.role == role]) for role in roles]
    backends = len({(one.record.subject.role, one.record.subject.name) for one in entries})
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>areal conformance</title><style>{STYLE}{_STYLE}</style></head><body><main>"
        f"<header><h1>Conformance of {backends} backends</h1></header>"
        "<p>A cell says how many checks of an area passed, of those that ran; below it the worst outcome. "
        "An empty cell: nothing of the area was asked or claimed.</p>"
        f"{''.join(parts)}<footer>{FOOTER}</footer></main></body></html>\n"
    )


def _role(role: str, entries: Sequence[Entry]) -> str:
    areas = dict.fromkeys(sorted({row.area for one in entries for row in one.record.checks}))
    head = "".join(f"<th>{name}</th>" for name in ("backend", "device", *_TOLD))
    head += "".join(f"<th class=area>{escape(area)}</th>" for area in areas)
    ordered = sorted(entries, key=lambda one: (one.record.subject.name, one.record.subject.device, one.place))
    lines = "".join(_line(entry, list(areas)) for entry in ordered)
    return f"<h2>{escape(role)}</h2><div class='card wide'><table class=matrix><tr>{head}</tr>{lines}</table></div>"


def _line(entry: Entry, areas: Sequence[str]) -> str:
    record = entry.record
    subject = record.subject
    device = f"{subject.device} stand-ins" if subject.stand_ins else subject.device
    name = f"<a href='{escape(entry.place)}/index.html'>{escape(subject.name)}</a>"
    ranks = f", {subject.ranks} ranks" if subject.ranks > 1 else ""
    told = "".join(f"<td>{cell}</td>" for cell in _told(entry).values())
    counts: dict[str, Counter[Outcome]] = {area: Counter() for area in areas}
    for row in record.checks:
        counts[row.area][row.outcome] += 1
    cells = "".join(_cell(area, counts[area]) for area in areas)
    return f"<tr><td>{name}</td><td>{escape(device + ranks)}</td>{told}{cells}</tr>"


def _told(entry: Entry) -> Mapping[str, str]:
    """Return the cells of a line that are facts: name -> markup."""
    record, seal = entry.record, entry.seal
    verdict = f"<span class={record.verdict}>{escape(record.verdict)}</span>"
    if seal.faults:
        kind, told = ("broken", "does not hold") if seal.written else ("", "no hash")
        verdict += f"<br><span class='{kind}' title='{escape('; '.join(seal.faults), quote=True)}'>{told}</span>"
    contract = escape(record.subject.contract)
    if seal.expired:
        contract += f"<br><span class=expired>expired: {escape(seal.expired)}</span>"
    suite = escape(record.suite)
    if seal.outdated:
        suite += f"<br><span class=expired>outdated: {escape(seal.outdated)}</span>"
    sources = record.sources
    return {
        "verdict": verdict,
        "levels": f"0 to {record.subject.level}",
        "contract": contract,
        "version": escape(" + ".join(f"{one.name} {one.version}".strip() for one in sources) or record.subject.origin),
        "commit": escape(" + ".join(filter(None, (one.commit for one in sources))) or record.git),
        "suite": suite,
        "made": escape(record.started[:10]),
    }


def _cell(area: str, counts: Counter[Outcome]) -> str:
    ran = counts.total() - counts[Outcome.SKIP]
    if not ran:
        return "<td class=cell></td>"
    worst = next(outcome for outcome in ORDER if counts[outcome])
    told = ", ".join(f"{counts[outcome]} {outcome}" for outcome in ORDER if counts[outcome])
    shown = f"{counts[Outcome.PASS]}/{ran}<i class=o-{worst}></i>"
    return f"<td class=cell title='{escape(f'{area}: {told}', quote=True)}'>{shown}</td>"


def _notices(seal: Seal) -> list[str]:
    """Return what the page of a report says of it beyond what it says itself."""
    expired = [f"Expired: {seal.expired}. It was true of the contract it names."] if seal.expired else []
    outdated = [f"Outdated: {seal.outdated}. An older suite made it."] if seal.outdated else []
    return [*(f"This report does not hold: {fault}." for fault in seal.faults), *expired, *outdated]


def _place(path: Path) -> str:
    """Return the folder of a report's page, one level deep."""
    return "-".join(path.parent.parts) or "report"


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise StorageError(f"{path} cannot be read", why=str(error)) from error
