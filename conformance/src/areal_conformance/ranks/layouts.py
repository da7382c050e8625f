"""Which parallel layouts a target is checked in, and what its ranks said, compared.

Knows: the adapter's layouts, the claims each one needs, tolerances of reports.
Does not know: programs or engines; imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from areal_conformance.outcome import Inconclusive, expect
from areal_core.config.backend import parse_backend

if TYPE_CHECKING:
    from areal_conformance.adapter import Variant
    from areal_conformance.benches.train import TrainBench

CLAIMS: Mapping[str, str] = {
    "d": "parallel.data",
    "t": "parallel.tensor",
    "p": "parallel.pipeline",
    "c": "parallel.context",
    "e": "parallel.expert",
}
Answered = tuple[dict[str, int], list[Any]]
"""A layout, and what each rank of it gave. Any: plain json."""
APART_S = 4.0
"""For checks a broken engine hangs in: the calls made take milliseconds."""
EVEN = [[0, 3, 4, 7], [1, 2, 5, 6]]
UNEVEN = [[1, 6, 0, 7, 5, 2, 3], [4]]
FEW = [[6], [7, 5, 4, 3, 2, 1, 0]]
NOTHING_ON_LAST = [[0, 1, 2, 3, 4, 5, 6, 7], []]
NOTHING_ON_FIRST = [[], [7, 2, 1, 3, 0, 4, 5, 6]]


def layouts(bench: TrainBench, *, letter: str = "", world_size: int = 2) -> list[dict[str, int]]:
    """Return the layouts of that many ranks the target claims; with `letter`, those that use that axis.

    Layouts with `e` need a model with experts, so only checks that ask for `e`, and bring one, are given them.
    Inconclusive if the adapter names none.
    """
    found = [
        layout
        for layout in _claimed(bench, world_size)
        if (not letter or layout.get(letter, 1) > 1) and (letter == "e" or layout.get("e", 1) == 1)
    ]
    if not found and not bench.target.claimed(CLAIMS[letter or "d"]):
        return [alone_on(letter, world_size)]  # to see if it works
    if not found and world_size > 2 and not letter:
        return [{"d": world_size}]
    if not found:
        named = ", ".join(bench.target.adapter.layouts) or "none"
        raise Inconclusive(
            f"the adapter names no claimed layout of {world_size} ranks{letter and f' with {letter}'}: {named}"
        )
    return found


def of_experts(bench: TrainBench) -> list[dict[str, int]]:
    """Return the layouts of two ranks that share experts, none where the target does not claim it."""
    return layouts(bench, letter="e") if bench.target.claimed(CLAIMS["e"]) else []


def answered(bench: TrainBench, program: str, *, letter: str = "", **arguments: Any) -> Iterator[Answered]:
    """Run a program on two ranks in every layout; yield the layout and what each rank gave. Any: plain json."""
    for layout in layouts(bench, letter=letter):
        yield layout, bench.on_ranks(program, 2, layout=layout, **arguments)


def looked_at(bench: TrainBench, program: str, **arguments: Any) -> Iterator[Answered]:
    """As `answered`, but the program runs once in a session for all checks that judge a part of what it tells."""
    for layout in layouts(bench):
        yield layout, bench.looked(program, 2, layout=layout, **arguments)


def varied(bench: TrainBench, world_size: int = 2) -> Iterator[tuple[str, Variant, dict[str, int]]]:
    """Yield each variant of the adapter with each of its layouts of that many ranks."""
    for name, variant in bench.target.adapter.variants.items():
        for layout in map(layout_of, variant.layouts):
            if _num_ranks(layout) == world_size:
                yield name, variant, layout


def layout_of(text: str) -> dict[str, int]:
    """Return a layout written as in a backend string."""
    return dict(parse_backend(f"any:{text}").layout)


def alone_on(letter: str, world_size: int) -> dict[str, int]:
    """Return the layout in which one axis takes all ranks; experts are shared by data ranks."""
    if letter == "e":
        return {"d": world_size, "e": world_size}
    return {"d": world_size} if letter in ("", "d") else {"d": 1, letter: world_size}


def with_experts(layout: Mapping[str, int]) -> bool:
    """Return whether a layout needs a model with experts."""
    return layout.get("e", 1) > 1


def _claimed(bench: TrainBench, world_size: int) -> list[dict[str, int]]:
    """Return the adapter's layouts of that many ranks of which every axis is claimed."""
    found = []
    for text in bench.target.adapter.layouts:
        layout = layout_of(text)
        if _num_ranks(layout) == world_size and all(
            bench.target.claimed(CLAIMS[axis]) for axis, degree in layout.items() if degree > 1
        ):
            found.append(layout)
    return found


def _num_ranks(layout: Mapping[str, int]) -> int:
    return math.prod(degree for axis, degree in layout.items() if axis != "e")


def no_gap(gap: tuple[float, str], what: str) -> None:
    """Expect weights not to differ in a bit."""
    expect(gap[0] == 0.0, f"{what}: {gap[1]} differs by {gap[0]:.3g}, bits were expected")


def same_on_all(layout: Mapping[str, int], answers: Sequence[Any], what: str) -> None:
    """Expect every rank to have given the same. Any: json."""
    for rank, answer in enumerate(answers):
        told = f"{what} is {answer} on rank {rank}, {answers[0]} on rank 0"
        expect(answer == answers[0], f"layout {named(layout)}: {told}")


def same_report(
    bench: TrainBench, layout: Mapping[str, int], expected: Mapping[str, Any], actual: Mapping[str, Any], when: str
) -> None:
    """Expect a report of several ranks to be that of one rank, as far as ranks may not matter."""
    where = f"layout {named(layout)}, {when}"
    loss = bench.tolerance(atol=2e-5, rtol=2e-5)
    norm = bench.tolerance(atol=1e-5, rtol=2e-4)
    for name, bound in (("loss", loss), ("grad_norm", norm)):
        close(expected[name], actual[name], bound.atol, bound.rtol, f"{where}: {name}")
    for name in ("lr", "stepped", "num_tokens"):
        told = f"{where}: {name} is {actual[name]} on several ranks, {expected[name]} on one"
        expect(expected[name] == actual[name], told)
    one, several = expected["metrics"], actual["metrics"]
    expect(set(one) == set(several), f"{where}: metrics are {sorted(several)} on several ranks, {sorted(one)} on one")
    extremes = {name for name in one if name.endswith(("_min", "_max"))}
    for name in sorted(extremes):
        (value, weight), (other, counted) = one[name], several[name]
        if weight == counted == 1.0:  # an engine that adds extremes tells so by a weight that is larger
            close(value, other, loss.atol, loss.rtol, f"{where}: the extreme {name!r}")
    for name in sorted({*one} - {"tokens", "long", "only_first"} - extremes):
        for part, left, right in zip(("value", "weight"), one[name], several[name], strict=True):
            close(left, right, loss.atol, loss.rtol, f"{where}: {part} of metric {name!r}")
    for name in {"tokens", "long"} & {*one}:  # one entry per micro-batch, so the weight depends on their number
        close(one[name][0], several[name][0], 0.0, 0.0, f"{where}: metric {name!r}")


def close(expected: Any, actual: Any, atol: float, rtol: float, what: str) -> None:
    """Expect two numbers to be close. Any: floats, or text where a number is not finite."""
    if isinstance(expected, str) or isinstance(actual, str):
        expect(expected == actual, f"{what}: expected {expected}, got {actual}")
        return
    told = f"{what}: expected {expected:.9g} as on one rank, got {actual:.9g} on several"
    expect(abs(expected - actual) <= atol + rtol * abs(expected), told)


def same_weights(bench: TrainBench, layout: Mapping[str, int], answer: Mapping[str, Any], when: str) -> None:
    """Expect the weights of several ranks to be those of one rank, and to have moved far enough to tell."""
    bound = bench.tolerance(atol=5e-5)
    bench.numbers["weight gap"] = max(bench.numbers.get("weight gap", 0.0), answer["gap"])
    where = f"layout {named(layout)}, {when}: after the steps {answer['worst']!r}"
    apart = f"differs by {answer['gap']:.3g} from one rank's; at most {bound.atol:g} was expected"
    expect(answer["gap"] <= bound.atol, f"{where} {apart}, and every tensor moved by {answer['moved']:.3g} or more")


def raised_on_all(layout: Mapping[str, int], answers: Sequence[Any], kinds: Sequence[str], what: str) -> None:
    """Expect the `error` of every rank's answer to be one of these. Any: json."""
    for rank, (kind, _, text) in enumerate(answer["error"] for answer in answers):
        expect(
            kind in kinds,
            f"layout {named(layout)}: {what} must raise {' or '.join(kinds)} on every rank; rank {rank} "
            + (f"raised {kind}: {text.splitlines()[0] if text else ''}" if kind else "raised nothing"),
        )


def named(layout: Mapping[str, int]) -> str:
    """Return a layout as in a backend string."""
    return "".join(f"{letter}{degree}" for letter, degree in layout.items())
