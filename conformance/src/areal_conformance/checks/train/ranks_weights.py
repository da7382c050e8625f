"""Weights that leave several ranks: whole, fresh, the same by every road, and refused or failed on all ranks alike.

Knows: what a sink on rank 0 must have received.
Does not know: transports.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from areal_conformance.benches.train import TrainBench
from areal_conformance.check import Level, check
from areal_conformance.outcome import expect
from areal_conformance.ranks.layouts import (
    APART_S,
    EVEN,
    UNEVEN,
    answered,
    looked_at,
    named,
    no_gap,
    raised_on_all,
    same_on_all,
)

_SENDS = "areal_conformance.ranks.weights:sends"
_MODELS: tuple[dict[str, Any], ...] = ({}, {"tied": False, "hidden": 32, "vocab_size": 66})
_check = partial(check, level=Level.DISTRIBUTED, law=7, spec="train#send_weights", requires=("parallel.data",), ranks=2)


@_check("train.ranks.send.receipt")
def receipt(bench: TrainBench) -> None:
    """Rank 0 returns a receipt of what arrived, for the version asked for; the other ranks return None."""
    for layout, answers in looked_at(bench, _SENDS, rows=UNEVEN, model={}):
        for number, first in enumerate(answers[0]["rounds"]):
            where = f"layout {named(layout)}, send {number}"
            expect(first["receipt"] is not None, f"{where}: rank 0 returned no receipt")
            version, num_bytes = first["receipt"]["version"], first["receipt"]["bytes"]
            expect(version == number + 1, f"{where}: the receipt is of version {version}, not {number + 1}")
            expect(first["version"] == number + 1, f"{where}: version {first['version']} was announced")
            expect(num_bytes == first["bytes"], f"{where}: the receipt counts {num_bytes} bytes of {first['bytes']}")
            wrong = [n for n, f in first["fingerprints"].items() if first["receipt_fingerprints"].get(n) != f]
            expect(not wrong, f"{where}: the receipt's fingerprints are not those of what arrived: {wrong[:3]}")
            for rank, answer in enumerate(answers[1:], start=1):
                got = answer["rounds"][number]["receipt"]
                expect(got is None, f"{where}: rank {rank} returned {got}, None was expected")


@_check("train.ranks.send.whole")
def whole(bench: TrainBench) -> None:
    """Every parameter arrives once, whole, under its own name, with the bits one rank sends: those of the folder."""
    for model in _MODELS:
        for layout, (first, *_) in looked_at(bench, _SENDS, rows=UNEVEN, model=model):
            where = f"layout {named(layout)}, model {model}"
            alone, sent = first["alone"], first["rounds"][0]
            for name in ("shapes", "tied"):
                odd = {k for k in {*alone[name], *sent[name]} if alone[name].get(k) != sent[name].get(k)}
                told = {k: sent[name].get(k) for k in sorted(odd)[:3]}
                expect(not odd, f"{where}: {name} sent differ from one rank's: {told}")
            wrong = [n for n, f in alone["fingerprints"].items() if sent["fingerprints"][n] != f]
            expect(not wrong, f"{where}: before any step {wrong[:3]} differ in bits from what one rank sends")
            no_gap(first["start_gap"], f"{where}: what is sent before any step, and the folder")


@_check("train.ranks.send.fresh")
def fresh(bench: TrainBench) -> None:
    """Each send gives the weights of now: after a step every tensor differs from the send before."""
    for model in _MODELS:
        for layout, answers in looked_at(bench, _SENDS, rows=UNEVEN, model=model):
            for number, stale in enumerate(answers[0]["frozen"], start=1):
                where = f"layout {named(layout)}, model {model}"
                expect(not stale, f"{where}: send {number} gave {stale[:3]} as before the step")


@_check("train.ranks.send.buckets")
def buckets(bench: TrainBench) -> None:
    """Ranks gather one bucket at a time: small buckets stay small, unless one tensor is larger."""
    for layout, answers in looked_at(bench, _SENDS, rows=UNEVEN, model={}):
        rounds = answers[0]["rounds"]
        for number, limit in ((0, 1 << 13), (2, 1 << 14)):
            num_buckets, largest = rounds[number]["buckets"], rounds[number]["largest"]
            sizes = [math.prod(shape) for shape in rounds[number]["shapes"].values()]
            fits = largest <= max(limit, rounds[number]["bytes"] // sum(sizes) * max(sizes))
            told = f"{num_buckets} buckets, the largest of {largest} bytes, {limit} asked for"
            expect(fits and num_buckets > 1, f"layout {named(layout)}: {told}")


@_check("train.ranks.save_weights", spec="train#save_weights")
def save_weights(bench: TrainBench) -> None:
    """A saved folder holds the bits that are sent, is there for every rank on return, and nothing is left beside it."""
    for layout, answers in looked_at(bench, _SENDS, rows=UNEVEN, model={}):
        for number, first in enumerate(answers[0]["rounds"]):
            where = f"layout {named(layout)}, save {number}"
            no_gap(first["saved_gap"], f"{where}: what is saved, and what is sent")
            for rank, answer in enumerate(answers):
                seen = answer["rounds"][number]["seen"]
                expect("config.json" in seen, f"{where}: when it returned, rank {rank} saw {seen}")
        expect(not answers[0]["left"], f"layout {named(layout)}: left beside the folders: {answers[0]['left']}")


@_check("train.ranks.send.failing_sink", deadline_s=40.0)
def failing_sink(bench: TrainBench) -> None:
    """A sink that fails, or holds other bits, is an error on every rank; it is aborted, and the next send works."""
    moments = ("begin", "bucket 1", "finish", "spoiled")
    program = "areal_conformance.ranks.weights:failing_sink"
    for layout, told in answered(bench, program, apart_s=APART_S, rows=EVEN, moments=moments):
        for at, *answers in zip(moments, *told, strict=True):
            kind = "FingerprintMismatch" if at == "spoiled" else "StorageError"
            raised_on_all(layout, answers, [kind], f"a sink that fails at {at!r}")
            first, where = answers[0], f"layout {named(layout)}"
            expect(first["aborted"], f"{where}: a sink that failed at {at!r} was not aborted")
            expect(first["again"]["receipt"] is not None, f"{where}: the send after a failed one has no receipt")
            same_on_all(layout, [answer["step"] for answer in answers], f"the report after a send failed at {at!r}")


@_check("train.ranks.save_nowhere", law=9, spec="train#save_weights", deadline_s=40.0)
def save_nowhere(bench: TrainBench) -> None:
    """A place nothing can be written to is a StorageError on every rank, nobody hangs, and the next save works."""
    for call in ("save_weights", "save_state"):
        program = "areal_conformance.ranks.weights:saves_nowhere"
        for layout, answers in answered(bench, program, apart_s=APART_S, rows=EVEN, call=call):
            raised_on_all(layout, answers, ["StorageError"], f"{call} to nowhere")
            same_on_all(layout, [answer["step"] for answer in answers], f"the report after a failed {call}")
            expect(answers[0]["files"], f"layout {named(layout)}: {call} after a failed one wrote nothing")
