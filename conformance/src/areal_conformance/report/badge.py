"""badge.svg: one line for a README, drawn without anything from elsewhere.

Knows: SVG, and how wide letters are about.
Does not know: anything the record does not hold.
"""

from __future__ import annotations

from html import escape

from areal_conformance.run.record import Record

COLOURS = {"success": "#2e7d32", "partial": "#b26a00", "incomplete": "#6b7280", "failure": "#c62828"}
_LETTER = 6.6
_PAD = 12
_HEIGHT = 20


def badge(record: Record) -> str:
    """Return the picture: what was judged by which contract, and the verdict with the levels it covers."""
    subject = record.subject
    versions = [text for role, text in record.contract.items() if role in _roles(subject.role)]
    left = f"areal {subject.role} contract {'/'.join(dict.fromkeys(versions))}"
    device = f" on {subject.device} stand-ins" if subject.stand_ins else f" on {subject.device}"
    right = f"{record.verdict}, levels 0-{subject.level}{device}"
    widths = [round(len(text) * _LETTER) + _PAD for text in (left, right)]
    total = sum(widths)
    told = escape(f"{subject.name}: {left}: {right}", quote=True)
    texts = "".join(
        f'<text x="{start + width / 2:g}" y="14">{escape(text)}</text>'
        for text, start, width in ((left, 0, widths[0]), (right, widths[0], widths[1]))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{total}" height="{_HEIGHT}" role="img" aria-label="{told}">'
        f"<title>{told}</title>"
        f'<rect width="{total}" height="{_HEIGHT}" rx="3" fill="#374151"/>'
        f'<path d="M{widths[0]} 0h{widths[1] - 3}a3 3 0 0 1 3 3v14a3 3 0 0 1-3 3h-{widths[1] - 3}z" '
        f'fill="{COLOURS.get(record.verdict, COLOURS["incomplete"])}"/>'
        f'<g fill="#fff" text-anchor="middle" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">{texts}</g>'
        "</svg>\n"
    )


def _roles(role: str) -> tuple[str, ...]:
    return ("train", "infer") if role == "pair" else (role,)
