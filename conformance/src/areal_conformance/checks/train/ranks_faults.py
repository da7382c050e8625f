"""Ranks that err, die, do not come, or cannot write: all are told in time, and what comes next is right.

Knows: how to make a call wrong on one rank only, and how long a call may take when another rank is gone.
Does not know: collectives, supervisors, how ranks tell each other.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from areal_conformance.benches.train import TrainBench
from areal_conformance.check import Level, Row, check, family
from areal_conformance.outcome import Inconclusive, expect
from areal_conformance.ranks.layouts import (
    APART_S,
    EVEN,
    answered,
    layouts,
    named,
    no_gap,
    raised_on_all,
    same_on_all,
    same_report,
)

_DATA = ("parallel.data",)
_EXACT = ("parallel.data", "checkpoint.exact")
_FAULTS = "areal_conformance.ranks.faults"
_TIMEOUT_S = 3.0
"""What the engines are told; a call may end a little later, for some look only every few seconds."""
_LATE_S = _TIMEOUT_S + APART_S
_CONNECTING_S = 15.0
"""Who knocks where nobody listens does so again and again, at growing intervals."""
_STEP, _FORWARD, _SEND, _STATE = "train#train_step", "train#forward", "train#send_weights", "train#save_state"
_NOT_WAITED_FOR = "does not keep the others waiting beyond the timeout"
_fault = partial(check, level=Level.FAULTS, law=9, requires=_DATA, ranks=2)
_error = partial(_fault, level=Level.DISTRIBUTED, deadline_s=40.0)


@family(
    "train.ranks.error.{name}",
    {
        "too_long": Row("A sequence too long for one rank", ("too_long", "train_step"), spec=_STEP),
        "forward": Row("What one rank cannot score", ("too_long", "forward"), spec=_FORWARD),
        "missing_column": Row("A column one rank lacks", ("missing_column", "train_step"), spec=_STEP),
        "long_name": Row("A column one rank lacks, and needs long to name,", ("long_name", "train_step"), spec=_STEP),
        "unknown_token": Row(
            "A token id one rank does not know", ("unknown_token", "train_step", "forward"), spec=_STEP
        ),
    },
    **_error.keywords,
)
def error_on_all(bench: TrainBench, case: tuple[str, ...]) -> None:
    """{...} is a BatchError on every rank, nobody hangs, and the next step is right."""
    defect, *calls = case
    for call in calls:
        for bad in (1, 0):
            spoiled: dict[str, Any] = {"rows": EVEN, "defect": defect, "bad": bad, "call": call}
            program = "areal_conformance.ranks.steps:spoiled"
            for layout, answers in answered(bench, program, letter="d", apart_s=APART_S, **spoiled):
                what = f"{call} with {defect.replace('_', ' ')} on rank {bad}"
                raised_on_all(layout, answers, ["BatchError"], what)
                kept = answers[0]["unchanged"]
                expect(kept, f"layout {named(layout)}: {what} was refused, but has changed weights")
                same_on_all(layout, [answer["next"] for answer in answers], f"the report after {what}")
                same_report(bench, layout, answers[0]["alone"], answers[0]["next"], f"the step after {what}")


@_error("train.ranks.error.objective", spec=_STEP)
def objective(bench: TrainBench) -> None:
    """An objective that raises is an error on every rank, also where it is not computed, and the next step is right."""
    spoiled: dict[str, Any] = {"rows": EVEN, "defect": "objective", "bad": -1}
    for layout, answers in answered(bench, "areal_conformance.ranks.steps:spoiled", apart_s=APART_S, **spoiled):
        where, told = f"layout {named(layout)}", [answer["error"] for answer in answers]
        heard = ["by the objective" in text for _, _, text in told]
        expect(any(heard), f"{where}: no rank tells what the objective raised: {told}")
        for rank, (kind, _, text) in enumerate(told):
            ended = f"raised {kind}: {text}" if kind else "raised nothing"
            expect(heard[rank] or kind == "TrainError", f"{where}: the objective raised, and rank {rank} {ended}")
        what = "after an objective that raised"
        expect(answers[0]["unchanged"], f"{where}: weights have changed {what}")
        same_on_all(layout, [answer["next"] for answer in answers], f"the report of the step {what}")
        same_report(bench, layout, answers[0]["alone"], answers[0]["next"], f"the step {what}")


@_error("train.ranks.error.model", spec="train#start")
def missing_model(bench: TrainBench) -> None:
    """A model folder one rank cannot see is a ModelError on every rank, or all start; the next start works."""
    for bad in (1, 0):
        program = "areal_conformance.ranks.starts:missing_model"
        for layout, answers in answered(bench, program, apart_s=APART_S, bad=bad):
            if any(answer["error"][0] for answer in answers):
                raised_on_all(layout, answers, ["ModelError"], f"start with a folder rank {bad} cannot see")
            same_on_all(layout, [answer["report"] for answer in answers], "the report after another start")


@family(
    "train.ranks.fault.killed_{call}",
    {
        "step": Row(
            "in the middle of a step gives the others an error within the timeout; new ranks then work",
            "train_step",
            spec=_STEP,
        ),
        "forward": Row(f"before it scores {_NOT_WAITED_FOR}", "forward", spec=_FORWARD),
        "send": Row(f"while weights are sent {_NOT_WAITED_FOR}", "send_weights", spec=_SEND),
    },
    **_fault.keywords,
)
def killed(bench: TrainBench, call: str) -> None:
    """A rank killed {...}."""
    for layout in layouts(bench):
        died = 0
        for victim in (1, 0):
            told: dict[str, Any] = {"layout": layout, "rows": EVEN, "victim": victim, "call": call}
            answers = bench.on_ranks(
                f"{_FAULTS}:killed", 2, apart_s=_LATE_S, may_die=(victim,), timeout_s=_TIMEOUT_S, **told
            )
            where = f"layout {named(layout)}, rank {victim} killed in {call}"
            if answers[victim] is not None and call == "train_step" and layout.get("p", 1) > 1:
                continue  # it is killed by its loss, which the ranks of the last stage compute
            if answers[victim] is not None:
                raise Inconclusive(f"{where}: it lived")
            died += 1
            kind = answers[1 - victim]["error"][0]
            expect(kind or call == "forward", f"{where}: the other rank returned as if all was well")
        if not died:
            raise Inconclusive(f"layout {named(layout)}: no rank that was to be killed in {call} was")
        again = bench.on_ranks("areal_conformance.ranks.steps:train", 2, layout=layout, plans=[EVEN], apart_s=APART_S)
        same_report(bench, layout, again[0]["alone"][0], again[1]["reports"][0], "new ranks after one was killed")


@_fault("train.ranks.fault.absent", spec="train#start")
def absent(bench: TrainBench) -> None:
    """A rank that never starts gives the others a typed error within the timeout; later all can start."""
    for layout in layouts(bench)[:1]:
        for missing in (1, 0):
            told: dict[str, Any] = {"layout": layout, "missing": missing, "timeout_s": _TIMEOUT_S}
            answers = bench.on_ranks(f"{_FAULTS}:absent", 2, apart_s=_TIMEOUT_S + _CONNECTING_S, **told)
            where = f"layout {named(layout)}, rank {missing} missing"
            kind, family_of, text = answers[1 - missing]["error"]
            expect(kind, f"{where}: start returned as if all ranks were there")
            told_as = f"{kind}: {text.splitlines()[:1]}, which is no error of areal"
            expect(family_of == "areal", f"{where}: start raised {told_as}")
            same_on_all(layout, [answer["step"] for answer in answers], "the report once all ranks have started")


@_fault("train.ranks.fault.stuck", spec="train#RankContext")
def stuck(bench: TrainBench) -> None:
    """A rank that lives and does not come to a step gives the others an error within the timeout."""
    for layout in layouts(bench)[:1]:
        for idle in (1, 0):
            told: dict[str, Any] = {"layout": layout, "rows": EVEN, "idle": idle, "timeout_s": _TIMEOUT_S}
            answers = bench.on_ranks(f"{_FAULTS}:stuck", 2, apart_s=_LATE_S, **told)
            kind = answers[1 - idle]["error"][0]
            expect(kind, f"layout {named(layout)}: rank {idle} never came, and train_step returned on the other")


@family(
    "train.ranks.fault.disk_{what}",
    {
        "state": Row("state saved before still loads", "save_state", law=4, spec=_STATE, requires=_EXACT),
        "weights": Row("folder saved before is whole", "save_weights", spec="train#save_weights"),
    },
    **_fault.keywords,
)
def disk_full(bench: TrainBench, call: str) -> None:
    """A disk full for one rank is a StorageError of save_{what} on every rank; the {...}."""
    fired = 0
    for layout in layouts(bench):
        for victim in (1, 0):
            answers = bench.on_ranks(
                f"{_FAULTS}:disk_full", 2, apart_s=APART_S, layout=layout, rows=EVEN, victim=victim, call=call
            )
            where = f"layout {named(layout)}, {call} with a disk full for rank {victim}"
            failed = any(answer["error"][0] for answer in answers)
            fired += failed
            if failed:
                raised_on_all(layout, answers, ["StorageError"], f"{call} with a disk full for rank {victim}")
            kept = answers[0]["is_saved" if failed else "is_later"]
            expect(kept, f"{where}: what is there now is not what was {'saved before' if failed else 'saved last'}")
            no_gap(answers[0]["going_on"], f"{where}: the running engine has changed")
            if call == "save_state":
                right = 7 if failed else 8
                for rank, answer in enumerate(answers):
                    expect(answer["version"] == right, f"{where}: rank {rank} loads version {answer['version']}")
            same_on_all(layout, [answer["step"] for answer in answers], f"the report after {call} on a full disk")
            expect(not answers[0]["left"], f"{where}: left behind: {answers[0]['left']}")
    if not fired:
        raise Inconclusive(f"no rank wrote a file large enough in {call}")


@_fault("train.ranks.fault.killed_saving", law=4, spec=_STATE, requires=_EXACT)
def killed_saving(bench: TrainBench) -> None:
    """A rank killed while it writes a state leaves the state before whole: new ranks load it exactly."""
    fired = 0
    for layout in layouts(bench):
        for victim in (0, 1):
            path = str(bench.folder / f"state-{named(layout)}-{victim}")
            where = f"layout {named(layout)}, rank {victim} killed while saving"
            told: dict[str, Any] = {"layout": layout, "rows": EVEN, "victim": victim, "path": path}
            answers = bench.on_ranks(f"{_FAULTS}:killed_saving", 2, apart_s=_LATE_S, may_die=(victim,), **told)
            if answers[victim] is not None:
                continue  # this rank writes nothing large
            fired += 1
            other = answers[1 - victim]
            expect(other["error"][0], f"{where}: save_state returned on the other rank as if all was well")
            loaded = bench.on_ranks(f"{_FAULTS}:load_after", 2, layout=layout, rows=EVEN, path=path)
            for rank, answer in enumerate(loaded):
                expect(answer["version"] == 7, f"{where}: rank {rank} then loaded version {answer['version']}, not 7")
                same_report(bench, layout, other["expected"], answer["step"], f"{where}: the step after the load")
    if not fired:
        raise Inconclusive("no rank wrote a file large enough to be killed at")
