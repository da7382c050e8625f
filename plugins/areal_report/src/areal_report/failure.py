"""Why a run ended, as the first thing on its page.

Knows: how errors of areal are written (what, code, why, fix), and what to say of a run that could not say anything.
Does not know: the rest of the page.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from attrs import frozen

from areal_report.history import History
from areal_report.journal import Journal
from areal_report.rates import Record
from areal_report.text import duration, html, number

_ERROR = re.compile(
    r"(?P<what>.*?) \[AREAL-(?P<code>E\d+)\](?:\n  why: (?P<why>.*?))?(?:\n  fix: (?P<fix>.*))?\Z", re.DOTALL
)
_STEPS = 5
_COLUMNS = {"reward": "reward", "loss": "loss", "grad_norm": "gradient norm", "staleness_max": "staleness"}


@frozen(kw_only=True)
class Cause:
    """What ended a run. Example: Cause(what="WorkerDied: actor/0 ended", code="AREAL-E401", why="exit 1")"""

    what: str
    code: str = ""
    why: str = ""
    fix: str = ""


def cause_of(status: str, journal: Journal, *, resumable: str | None = None) -> Cause | None:
    """Return what ended a run badly, None for one that goes on or ended well.

    Args:
        resumable: the run's folder, if there is something to go on with.
    """
    go_on = f"areal train --resume {resumable}" if resumable else ""
    if status == "crashed":
        return Cause(
            what="The run ended without a word",
            why="its controller was killed (kill -9, no memory left, power); what it had written until then is below",
            fix=go_on or "start it again; it had not begun to make episodes",
        )
    if status != "failed":
        return None
    error = str(journal.ended.get("error") or "nothing is known of the error")
    found = _ERROR.match(error)
    if found is None:
        return Cause(
            what=error,
            why="no error of areal's own: user code, a library or the machine raised it",
            fix="look at the end of the files in logs/" + (f", then go on with: {go_on}" if go_on else ""),
        )
    fix = (found["fix"] or "").strip()
    told = "\n".join(part for part in (fix, f"then go on with: {go_on}" if go_on and go_on not in fix else "") if part)
    return Cause(what=found["what"].strip(), code=f"AREAL-{found['code']}", why=(found["why"] or "").strip(), fix=told)


def cause_html(cause: Cause, journal: Journal, history: History) -> str:
    """Return the section that leads the page of a run that failed."""
    code = (
        f"<p class='code'>{html(cause.code)} <span>docs/errors/{html(cause.code)}.md</span></p>" if cause.code else ""
    )
    rows = "".join(
        f"<dt>{name}</dt><dd><pre>{html(text)}</pre></dd>"
        for name, text in (("why", cause.why), ("what to try", cause.fix))
        if text
    )
    steps = _last_steps(history.last[-_STEPS:])
    began, ended = journal.began, journal.ended.get("time")
    when = f"after {duration(ended - began)}, " if began is not None and isinstance(ended, int | float) else ""
    where = (
        f"{when}{history.last[-1]['step'] if history.last else 'no'} step{'' if len(history.last) == 1 else 's'} done"
    )
    return (
        f"<section class='cause'><h2>What ended it</h2>{code}<pre class='what'>{html(cause.what)}</pre>"
        f"<p class='more'>{html(where)}</p><dl>{rows}</dl>{steps}</section>"
    )


def _last_steps(records: Sequence[Record]) -> str:
    if not records:
        return ""
    names = [name for name in _COLUMNS if any(name in record for record in records)]
    head = "".join(f"<th>{html(title)}</th>" for title in ("step", *(_COLUMNS[name] for name in names), "took"))
    body = "".join(
        "<tr>"
        + "".join(
            f"<td>{html(value)}</td>"
            for value in (
                record["step"],
                *(number(record.get(name)) or "none" for name in names),
                number(record.get("seconds"), duration) or "",
            )
        )
        + "</tr>"
        for record in records
    )
    return f"<h3>The last steps</h3><table class='numbers'><tr>{head}</tr>{body}</table>"
