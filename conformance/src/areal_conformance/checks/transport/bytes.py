"""Bytes arrive as they were sent: every dtype, shape, stride and size, in buckets of any cut.

Knows: what tensors may be like.
Does not know: how bytes travel.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial

from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

from areal_conformance.benches.transport import MOMENT_S, TransportBench
from areal_conformance.benches.transport_tensors import DTYPES, SETS, noise, plain, sized
from areal_conformance.check import Level, check
from areal_conformance.checks.transport.judging import same, sent_until
from areal_conformance.outcome import expect
from areal_core.contract.weights import Offer, Receipt

_LARGEST = 512 << 20
"""A transport that asks for larger buckets is not sent several of them."""


def round_trip(
    bench: TransportBench, tensors: Mapping[str, Tensor], where: str, *, small_buckets: bool = False
) -> None:
    """Send, receive with another end, compare, release."""
    controller, sender, receiver = (bench.transport(small_buckets=small_buckets) for _ in range(3))
    offer = controller.open(4)
    _, (received,) = bench.carry(controller, sender, [receiver], offer, tensors)
    same(tensors, received, where)
    controller.release(offer)


@check("transport.bytes.dtypes", level=Level.SINGLE, law=7, spec="weights")
def dtypes(bench: TransportBench) -> None:
    """Tensors of every dtype arrive with the same bits, special values of floats among them."""
    for name in ("dtypes", "special"):
        round_trip(bench, SETS[name](5), name)
        round_trip(bench, SETS[name](6), f"{name}, small buckets", small_buckets=True)


@check("transport.bytes.shapes", level=Level.SINGLE, law=7, spec="weights")
def shapes(bench: TransportBench) -> None:
    """Scalars, empty tensors, views of any stride and parameters arrive whole, in their own shape."""
    tensors = SETS["shapes"](7)
    round_trip(bench, tensors, "any shapes")
    round_trip(bench, dict(reversed(tensors.items())), "any shapes, reversed")
    round_trip(bench, {"only": tensors["scalar"]}, "one scalar alone")
    round_trip(bench, {"only": tensors["empty"]}, "one empty tensor alone")


@check("transport.bytes.nothing", level=Level.SINGLE, law=7, spec="weights")
def nothing(bench: TransportBench) -> None:
    """A version of no tensors is a version: it can be finished and read."""
    round_trip(bench, {}, "no tensors at all")


@check("transport.bytes.device", level=Level.SINGLE, law=7, spec="weights")
def device(bench: TransportBench) -> None:
    """Tensors on the target's device are taken as they are and yielded on the CPU."""
    where = bench.target.torch_type
    tensors = {name: tensor.to(where) for name, tensor in SETS["plain"](8).items()}
    round_trip(bench, tensors, f"tensors on {where}")


@check("transport.bytes.sets", level=Level.SINGLE, law=7, spec="weights", deadline_s=120.0)
def sets(bench: TransportBench) -> None:
    """Any set of tensors, in buckets of any cut, arrives bit for bit."""
    controller, sender, receiver = (bench.transport(small_buckets=True) for _ in range(3))
    tensor = st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 9), max_size=3), st.booleans())

    @settings(max_examples=25, derandomize=True, database=None, deadline=None, phases=(Phase.generate,))
    @given(drawn=st.lists(tensor, min_size=1, max_size=8), sizes=st.lists(st.integers(1, 3), min_size=8, max_size=8))
    def any_set(drawn: list[tuple[str, list[int], bool]], sizes: list[int]) -> None:
        made: dict[str, Tensor] = {}
        for number, (dtype, shape, turned) in enumerate(drawn):
            value = noise(tuple(shape), dtype, number)
            made[f"t.{number}"] = value.t() if turned and value.ndim == 2 else value

        def cut(tensors: Mapping[str, Tensor], _size: int) -> Iterator[Mapping[str, Tensor]]:
            items, widths = list(tensors.items()), iter(sizes)
            while items:
                width = next(widths)
                yield dict(items[:width])
                items = items[width:]

        offer = controller.open(1)
        _, (received,) = bench.carry(controller, sender, [receiver], offer, made, cut=cut)
        same(made, received, f"{drawn} cut by {sizes}")
        controller.release(offer)

    any_set()


@check("transport.bytes.buckets", level=Level.SINGLE, law=7, spec="weights", deadline_s=120.0)
def buckets(bench: TransportBench) -> None:
    """More than one bucket, a tensor larger than a bucket, and buckets cut otherwise than asked for arrive whole."""
    transport = bench.transport(small_buckets=True)
    size = bench.within(lambda: transport.sink(transport.open(9)).bucket_bytes)
    expect(isinstance(size, int) and size > 0, f"bucket_bytes must be a positive number of bytes, got {size!r}")
    if size > _LARGEST:
        bench.notes.append(f"asks for buckets of {size} bytes; more than one of them was not sent")
        size = 1 << 20
    larger = {
        "small": noise((3,), "float32", 1),
        **sized(size * 2, 5, 2),
        "huge": sized(size + 5, 1, 3)["part.0"],
        "tail": noise((), "float32", 4),
    }
    round_trip(bench, larger, f"{2 * size} bytes and more, buckets of {size}", small_buckets=True)

    def one_each(tensors: Mapping[str, Tensor], _size: int) -> Iterable[Mapping[str, Tensor]]:
        return ({name: tensor} for name, tensor in tensors.items())

    def all_at_once(tensors: Mapping[str, Tensor], _size: int) -> Iterable[Mapping[str, Tensor]]:
        return ({}, tensors, {})

    for cut in (one_each, all_at_once):
        offer = transport.open(1)
        _, (received,) = bench.carry(transport, transport, [bench.transport()], offer, plain(3), cut=cut)
        same(plain(3), received, cut.__name__)
        transport.release(offer)


@check("transport.bytes.full_bucket", level=Level.SINGLE, law=7, spec="weights", deadline_s=120.0)
def full_bucket(bench: TransportBench) -> None:
    """Buckets of the size the transport itself asks for arrive whole, and so does what follows."""
    transport = bench.transport()
    size = bench.within(lambda: transport.sink(transport.open(9)).bucket_bytes)
    if size > _LARGEST:
        bench.notes.append(f"asks for buckets of {size} bytes; not sent")
        return
    offer = transport.open(1)
    tensors = {**sized(size + size // 2, 4, 1), "end": sized(100, 1, 2)["part.0"]}
    _, (received,) = bench.carry(transport, transport, [bench.transport()], offer, tensors)
    same(tensors, received, f"default buckets of {size} bytes")
    transport.release(offer)


@check("transport.bytes.overlap", level=Level.SINGLE, law=7, spec="weights")
def overlap(bench: TransportBench) -> None:
    """Tensors that share memory, in one bucket or in several, arrive apart and whole."""
    flat = noise((24,), "float32", 9)
    tensors = {"a": flat, "b": flat, "c": flat[3:9], "d": flat.reshape(4, 6).t(), "e": flat[::2], "f": flat[:3]}
    round_trip(bench, tensors, "one bucket")
    round_trip(bench, dict(reversed(tensors.items())), "one bucket, reversed")
    round_trip(bench, {**tensors, "big": noise((900,), "float32", 1)}, "several buckets", small_buckets=True)


@check("transport.sink.copies", level=Level.SINGLE, law=7, spec="weights")
def copies(bench: TransportBench) -> None:
    """A tensor changed after `write` returned, or after `finish`, arrives as it was when written."""
    apart = (plain(1), {**sized(300_000, 2, 1), **plain(2)}, sized(12_000_000, 3, 3))
    for tensors, together in (*((one, 1) for one in apart), (_columns_and_wholes(4), 2)):
        kept = {name: tensor.clone() for name, tensor in tensors.items()}
        controller = bench.transport(small_buckets=together > 1)
        offer = controller.open(1)
        sending = partial(_overwriting, bench, offer, tensors, together)
        if bench.streams:
            moment_s = MOMENT_S if together > 1 else 0.0
            ended = bench.stream(controller, offer, sending, [bench.transport()], moment_s=moment_s)
            receipt, (received,) = ended.all_well()
        else:
            receipt, received = sending(), bench.receive(bench.transport(), offer)
        same(kept, received, "after the sender's tensors were overwritten")
        told = "the sink's receipt must be of the bytes it took, not of what became of the sender's tensors"
        expect(dict(receipt.fingerprints) == dict(received.receipt().fingerprints), told)
        controller.release(offer)


def _columns_and_wholes(seed: int) -> dict[str, Tensor]:
    """Return tensors in twos: columns of a matrix, which have to be copied to be sent, and one that lies as it is."""
    made: dict[str, Tensor] = {}
    for number in range(4):
        base = noise((200, 600), "uint8", 10 * seed + number)
        made |= {f"columns.{number}": base[:, ::2], f"whole.{number}": noise((50_000,), "uint8", 77 * seed + number)}
    return made


def _overwriting(bench: TransportBench, offer: Offer, tensors: Mapping[str, Tensor], together: int) -> Receipt:
    """Send so many tensors at a time and write over them as soon as they are written; over all when it is finished."""
    sink = sent_until(bench, bench.transport(), offer, tensors, "begun")
    named = list(tensors.items())
    for start in range(0, len(named), together):
        bucket = dict(named[start : start + together])
        sink.write(bucket)
        for tensor in bucket.values():
            tensor.zero_()
    receipt = sink.finish()
    for tensor in tensors.values():
        tensor.fill_(1)
    return receipt
