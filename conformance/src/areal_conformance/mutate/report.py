"""A record told: as text, and as files.

    mutation.json   everything        mutation.md   what a person reads        survivors.toml   entries to fill in

Knows: words.
Does not know: how a record came about.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from areal_conformance.mutate.record import Record, Row, to_json
from areal_conformance.mutate.triage import NAME, suggestion
from areal_conformance.mutate.trial import Fate

MAX_CHECKS = 3


def text(record: Record) -> str:
    """Return survivors and scores as plain lines."""
    lines: list[str] = []
    for fate, what in (
        (Fate.SURVIVED, "survived every check that runs the line"),
        (Fate.UNSEEN, "on a line that no check ever runs"),
    ):
        found = record.living(fate)
        if found:
            lines += ["", f"{_mutants(len(found))} {what}:"]
            lines += [line for row in found for line in _told(row)]
    unrun = {path: found for path, found in sorted(record.unrun.items()) if found}
    if unrun:
        lines += ["", "lines in functions that no check runs, of all there are:"]
        lines += [f"  {path}: {ranges(found)}" for path, found in unrun.items()]
    lines += ["", *_scores(record)]
    return "\n".join(lines).lstrip("\n")


def markdown(record: Record) -> str:
    """Return the page."""
    lines = [
        f"# Mutants of {record.role} {record.name}",
        "",
        f"{record.origin}. `{record.command}`, {record.started}, {record.seconds:.0f} s.",
        "",
        f"Score: {record.score} of the mutants that should die.",
        "",
        "| module | mutants it has | tried | score, 95% interval |",
        "|---|---|---|---|",
    ]
    for path, score in record.by_module().items():
        tried = sum(row.key.path == path for row in record.rows)
        lines.append(f"| {path} | {record.population.get(path, 0)} | {tried} | {score} |")
    lines += ["", "```text", text(record), "```", ""]
    return "\n".join(lines)


def write(record: Record, folder: Path) -> list[Path]:
    """Write the files; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    open_keys = [row.key for row in record.rows if row.trial.fate is not Fate.KILLED and row.said is None]
    files = {
        "mutation.json": json.dumps(to_json(record), indent=1) + "\n",
        "mutation.md": markdown(record),
        "survivors.toml": f"# What you have judged belongs in the package's {NAME}.\n\n{suggestion(open_keys)}",
    }
    for name, content in files.items():
        (folder / name).write_text(content, encoding="utf-8")
    return [folder / name for name in files]


def ranges(lines: Sequence[int]) -> str:
    """Return line numbers with neighbours put together: `4-6, 9`."""
    groups: list[list[int]] = []
    for line in lines:
        if groups and line == groups[-1][1] + 1:
            groups[-1][1] = line
        else:
            groups.append([line, line])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in groups)


def short(row: Row) -> str:
    """Return one line about one mutant, as it ends."""
    trial = row.trial
    by = f" by {trial.killer} ({trial.how})" if trial.killer else ""
    said = f", {row.said.verdict}" if row.said is not None and trial.fate is not Fate.KILLED else ""
    return f"{trial.fate:<8} {row.key.operator:<11} {row.key.path}:{row.line}{by}{said} {trial.seconds:.1f} s"


def _told(row: Row) -> list[str]:
    said = f"  [{row.said.verdict}: {row.said.why}]" if row.said is not None else ""
    lines = [f"  {row.key.path}:{row.line} {row.key.function} {row.key.operator}{said}", f"    - {row.old}"]
    lines.append(f"    + {row.new}")
    if row.why:
        lines.append(f"    why it harms: {row.why}")
    checks = row.trial.checks
    if checks:
        more = f" and {len(checks) - MAX_CHECKS} more" if len(checks) > MAX_CHECKS else ""
        asked = f"; {row.trial.not_asked} of them were not asked" if row.trial.not_asked else ""
        lines.append(f"    run by {', '.join(checks[:MAX_CHECKS])}{more}{asked}")
    return lines


def _scores(record: Record) -> list[str]:
    lines = [f"{path}: {score}" for path, score in record.by_module().items()]
    unfit = [key for key, outcome in record.checks.items() if outcome not in ("pass", "skip")]
    if unfit:
        lines.append(f"not used, for they do not pass on the backend as it is: {', '.join(sorted(unfit))}")
    for key in record.stale:
        lines.append(f"no such mutant any more: {key.path} {key.function} {key.operator}: {key.before}")
    short_of = sum(row.trial.fate is Fate.SURVIVED and row.trial.not_asked > 0 for row in record.rows)
    if short_of:
        lines.append(f"{_mutants(short_of)} that survived might die by checks that were not asked: a lower bound")
    if record.interrupted:
        lines.append(f"interrupted: {len(record.rows)} of {record.planned} were tried")
    fates = [row.trial.fate for row in record.rows]
    told = ", ".join(f"{fates.count(fate)} {fate}" for fate in Fate)
    excused = sum(row.excused for row in record.rows)
    lines.append(f"{_mutants(len(fates))} of {sum(record.population.values())}: {told}; {excused} excused by {NAME}")
    lines.append(f"score: {record.score}")
    refused = sum(row.refused for row in record.rows)
    if refused:
        lines.append(f"score without {refused} that any call tells (TypeError and the like): {record.score_of_valid}")
    return lines


def _mutants(number: int) -> str:
    return f"{number} mutant{'s' * (number != 1)}"
