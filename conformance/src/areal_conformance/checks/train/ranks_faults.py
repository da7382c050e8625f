"""Ranks that die, do not come, or cannot write: the others are told in time, and nothing saved before is lost.

Knows: how long a call may take when another rank is gone.
Does not know: collectives, supervisors.
"""

from __future__ import annotations

from areal_conformance.benches.train import TrainBench
from areal_conformance.check import Level, check
from areal_conformance.outcome import Inconclusive, expect
from areal_conformance.ranks.layouts import EVEN, layouts, named, raised_on_all, same_on_all, same_report

_DATA = ("parallel.data",)
_EXACT = ("parallel.data", "checkpoint.exact")
_FAULTS = "areal_conformance.ranks.faults"
_TIMEOUT_S = 3.0
"""What the engines are told; a call may end a little later, for some look only every few seconds."""
_LATER_S = 4.0
_CONNECTING_S = 15.0
"""Who knocks where nobody listens does so again and again, at growing intervals."""


@check("train.ranks.fault.killed_step", level=Level.FAULTS, law=9, spec="train#train_step", requires=_DATA, ranks=2)
def killed_step(bench: TrainBench) -> None:
    """A rank killed in the middle of a step gives the others an error within the timeout; new ranks then work."""
    _killed(bench, "train_step")


@check("train.ranks.fault.killed_forward", level=Level.FAULTS, law=9, spec="train#forward", requires=_DATA, ranks=2)
def killed_forward(bench: TrainBench) -> None:
    """A rank killed before it scores does not keep the others waiting beyond the timeout."""
    _killed(bench, "forward", may_finish=True)


@check("train.ranks.fault.killed_send", level=Level.FAULTS, law=9, spec="train#send_weights", requires=_DATA, ranks=2)
def killed_send(bench: TrainBench) -> None:
    """A rank killed while weights are sent does not keep the others waiting beyond the timeout."""
    _killed(bench, "send_weights")


@check("train.ranks.fault.absent", level=Level.FAULTS, law=9, spec="train#start", requires=_DATA, ranks=2)
def absent(bench: TrainBench) -> None:
    """A rank that never starts gives the others a typed error within the timeout; later all can start."""
    for layout in layouts(bench)[:1]:
        for missing in (1, 0):
            answers = bench.on_ranks(
                f"{_FAULTS}:absent",
                2,
                apart_s=_TIMEOUT_S + _CONNECTING_S,
                layout=layout,
                missing=missing,
                timeout_s=_TIMEOUT_S,
            )
            where = f"layout {named(layout)}, rank {missing} missing"
            kind, family, text = answers[1 - missing]["error"]
            expect(kind, f"{where}: start returned as if all ranks were there")
            expect(
                family == "areal", f"{where}: start raised {kind}: {text.splitlines()[:1]}, which is no error of areal"
            )
            same_on_all(layout, [answer["step"] for answer in answers], "the report once all ranks have started")


@check("train.ranks.fault.stuck", level=Level.FAULTS, law=9, spec="train#RankContext", requires=_DATA, ranks=2)
def stuck(bench: TrainBench) -> None:
    """A rank that lives and does not come to a step gives the others an error within the timeout."""
    for layout in layouts(bench)[:1]:
        for idle in (1, 0):
            answers = bench.on_ranks(
                f"{_FAULTS}:stuck",
                2,
                apart_s=_TIMEOUT_S + _LATER_S,
                layout=layout,
                rows=EVEN,
                idle=idle,
                timeout_s=_TIMEOUT_S,
            )
            kind = answers[1 - idle]["error"][0]
            expect(kind, f"layout {named(layout)}: rank {idle} never came, and train_step returned on the other")


@check("train.ranks.fault.disk_state", level=Level.FAULTS, law=4, spec="train#save_state", requires=_EXACT, ranks=2)
def disk_state(bench: TrainBench) -> None:
    """A disk full for one rank is a StorageError of save_state on every rank; the state saved before still loads."""
    _disk(bench, "save_state")


@check("train.ranks.fault.disk_weights", level=Level.FAULTS, law=9, spec="train#save_weights", requires=_DATA, ranks=2)
def disk_weights(bench: TrainBench) -> None:
    """A disk full for one rank is a StorageError of save_weights on every rank; the folder saved before is whole."""
    _disk(bench, "save_weights")


@check("train.ranks.fault.killed_saving", level=Level.FAULTS, law=4, spec="train#save_state", requires=_EXACT, ranks=2)
def killed_saving(bench: TrainBench) -> None:
    """A rank killed while it writes a state leaves the state before whole: new ranks load it exactly."""
    fired = 0
    for layout in layouts(bench):
        for victim in (0, 1):
            path = str(bench.folder / f"state-{named(layout)}-{victim}")
            where = f"layout {named(layout)}, rank {victim} killed while saving"
            answers = bench.on_ranks(
                f"{_FAULTS}:killed_saving",
                2,
                apart_s=_TIMEOUT_S + _LATER_S,
                may_die=(victim,),
                layout=layout,
                rows=EVEN,
                victim=victim,
                path=path,
            )
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


def _killed(bench: TrainBench, call: str, *, may_finish: bool = False) -> None:
    for layout in layouts(bench):
        died = 0
        for victim in (1, 0):
            answers = bench.on_ranks(
                f"{_FAULTS}:killed",
                2,
                apart_s=_TIMEOUT_S + _LATER_S,
                may_die=(victim,),
                layout=layout,
                rows=EVEN,
                victim=victim,
                call=call,
                timeout_s=_TIMEOUT_S,
            )
            where = f"layout {named(layout)}, rank {victim} killed in {call}"
            if answers[victim] is not None and call == "train_step" and layout.get("p", 1) > 1:
                continue  # it is killed by its loss, which the ranks of the last stage compute
            if answers[victim] is not None:
                raise Inconclusive(f"{where}: it lived")
            died += 1
            survivor = answers[1 - victim]
            kind = survivor["error"][0]
            expect(kind or may_finish, f"{where}: the other rank returned as if all was well")
        if not died:
            raise Inconclusive(f"layout {named(layout)}: no rank that was to be killed in {call} was")
        again = bench.on_ranks("areal_conformance.ranks.steps:train", 2, layout=layout, plans=[EVEN], apart_s=_LATER_S)
        same_report(bench, layout, again[0]["alone"][0], again[1]["reports"][0], "new ranks after one was killed")


def _disk(bench: TrainBench, call: str) -> None:
    fired = 0
    for layout in layouts(bench):
        for victim in (1, 0):
            answers = bench.on_ranks(
                f"{_FAULTS}:disk_full", 2, apart_s=_LATER_S, layout=layout, rows=EVEN, victim=victim, call=call
            )
            where = f"layout {named(layout)}, {call} with a disk full for rank {victim}"
            errors = [answer["error"] for answer in answers]
            failed = any(error[0] for error in errors)
            fired += failed
            if failed:
                raised_on_all(layout, errors, ["StorageError"], f"{call} with a disk full for rank {victim}")
            kept = answers[0]["is_saved" if failed else "is_later"]
            expect(kept, f"{where}: what is there now is not what was {'saved before' if failed else 'saved last'}")
            distance, worst = answers[0]["going_on"]
            expect(distance == 0.0, f"{where}: {worst} of the running engine changed by {distance:.3g}")
            if call == "save_state":
                right = 7 if failed else 8
                for rank, answer in enumerate(answers):
                    expect(answer["version"] == right, f"{where}: rank {rank} loads version {answer['version']}")
            same_on_all(layout, [answer["step"] for answer in answers], f"the report after {call} on a full disk")
            expect(not answers[0]["left"], f"{where}: left behind: {answers[0]['left']}")
    if not fired:
        raise Inconclusive(f"no rank wrote a file large enough in {call}")
