"""Every transport carries any tensors bit for bit, says so with fingerprints, and leaves nothing behind."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import attrs
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from areal_core.contract.errors import (
    CoverageError,
    FingerprintMismatch,
    ResourceError,
    StorageError,
    WeightSyncError,
)
from areal_core.contract.weights import WeightSink, WeightSource, WeightTransport
from areal_core.weights.coverage import compare
from areal_core.weights.tensors import manifest_of
from areal_local.transports import disk
from areal_local.transports.config import DiskConfig, ShmConfig
from areal_local.transports.disk import DiskTransport
from areal_local.transports.shm import ShmTransport

from .transfers import Make, receipt_for, receive, send, some_tensors

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool, torch.uint8, torch.float8_e4m3fn]


@st.composite
def tensor_sets(draw: st.DrawFn) -> dict[str, Tensor]:
    shapes = st.lists(st.integers(0, 5), max_size=3)
    tensors = {}
    for number in range(draw(st.integers(1, 6))):
        shape, dtype = draw(shapes), draw(st.sampled_from(DTYPES))
        size = torch.Size(shape).numel() * dtype.itemsize
        values = bytes(draw(st.binary(min_size=size, max_size=size)))
        if dtype is torch.bool:
            values = bytes(value % 2 for value in values)
        flat = torch.frombuffer(bytearray(values), dtype=dtype) if size else torch.empty(0, dtype=dtype)
        tensor = flat.reshape(shape)
        tensors[f"layers.{number}.weight"] = tensor.t().contiguous().t() if tensor.ndim == 2 else tensor
    return tensors


@given(tensors=tensor_sets(), bucket_bytes=st.integers(1, 200))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_tensors_round_trip_bit_for_bit(make: Make, tensors: dict[str, Tensor], bucket_bytes: int) -> None:
    """Bytes, shapes, dtypes, order of names and ties arrive as sent, in buckets of any size."""
    transport = make(bucket_bytes)
    offer = transport.open(3)

    sent = send(transport, offer, tensors)
    source = transport.source(offer)
    received = receive(transport, offer)
    transport.release(offer)
    transport.close()

    assert receipt_for(tensors, 3).fingerprints == dict(sent.fingerprints)
    compare(sent, receipt_for(received, 3), "replica")
    assert [spec.name for spec in source.manifest.tensors] == list(tensors)
    assert dict(source.manifest.tied) == {"head.weight": next(iter(tensors))}
    assert sent.num_bytes == sum(tensor.nbytes for tensor in tensors.values())


def test_parts_satisfy_the_contract(make: Make) -> None:
    """Transport, sink and source are what the contract's protocols ask for."""
    transport = make()
    offer = transport.open(1)
    sink = transport.sink(offer)
    send(transport, offer, some_tensors())

    assert isinstance(transport, WeightTransport)
    assert isinstance(sink, WeightSink)
    assert isinstance(transport.source(offer), WeightSource)


def test_versions_follow_each_other_and_each_is_its_own(make: Make) -> None:
    """Ten updates in a row, each released, each read back as sent; sizes may grow and shrink."""
    transport = make()
    for version in range(1, 11):
        tensors = some_tensors(version) | {"extra": torch.full((version * 37 % 50,), float(version))}
        offer = transport.open(version)

        sent = send(transport, offer, tensors)
        compare(sent, receipt_for(receive(transport, offer), version), "replica")
        transport.release(offer)


def test_every_version_has_the_names_and_shapes_it_was_sent_with(make: Make) -> None:
    """Also where the one before had others that take as many bytes to tell and to hold, or the same ones."""
    transport, taller, renamed = make(), {"a": torch.ones(2, 3), "b": torch.arange(4)}, {"a": torch.ones(2, 3)}
    wider = {"a": torch.full((3, 2), 2.0), "b": torch.arange(4) + 1}
    renamed |= {"c": torch.arange(4) + 2}
    for version, tensors in enumerate((taller, taller, wider, renamed, taller), 1):
        offer = transport.open(version)
        send(transport, offer, tensors)
        source = transport.source(offer)
        received = receive(transport, offer)

        assert [(spec.name, spec.shape) for spec in source.manifest.tensors] == [
            (name, tuple(tensor.shape)) for name, tensor in tensors.items()
        ]
        assert source.manifest.version == version
        assert received.keys() == tensors.keys()
        assert all(torch.equal(received[name], tensor) for name, tensor in tensors.items())
        source.close()
        transport.release(offer)


def test_a_bucket_is_written_as_two_files_and_one_that_fails_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are named in the index, in the order of the tensors; where one cannot be written nothing is readable."""
    transport = DiskTransport(DiskConfig(root=str(tmp_path)))
    tensors = {f"w{number}": torch.full((1 << 20,), float(number)) for number in range(5)}
    whole, broken = transport.open(1), transport.open(2)

    send(transport, whole, tensors)
    index = json.loads((Path(str(whole.location["folder"])) / "index.json").read_text())
    received = receive(transport, whole)
    save = disk.save_file

    def fail_at_the_second(part: dict[str, Tensor], path: Path) -> None:
        if path.name == "000001.safetensors":
            raise OSError("no room")
        save(part, path)

    monkeypatch.setattr(disk, "save_file", fail_at_the_second)
    with pytest.raises(StorageError, match="could not be written"):
        send(transport, broken, tensors)

    assert list(index["files"].values()) == [["w0", "w1", "w2"], ["w3", "w4"]]
    assert all(torch.equal(received[name], tensor) for name, tensor in tensors.items())
    assert not list(Path(str(broken.location["folder"])).iterdir())
    with pytest.raises(WeightSyncError, match="never finished"):
        transport.source(broken)
    transport.close()


def test_two_offers_at_once_do_not_touch_each_other(make: Make) -> None:
    """An offer that is still open keeps its bytes while the next version is written."""
    transport = make()
    first, second = transport.open(1), transport.open(2)

    sent_first = send(transport, first, some_tensors(1))
    sent_second = send(transport, second, some_tensors(2))

    compare(sent_first, receipt_for(receive(transport, first), 1), "replica")
    compare(sent_second, receipt_for(receive(transport, second), 2), "replica")


def test_tensors_that_share_memory_arrive_apart(make: Make) -> None:
    """Tied tensors and views of one buffer are sent as what they are: separate names."""
    flat = torch.arange(12.0)
    tensors = {"a": flat, "b": flat, "c": flat[3:9], "d": flat.reshape(3, 4).t()}
    transport = make(10_000)
    offer = transport.open(1)

    sent = send(transport, offer, tensors)

    compare(sent, receipt_for(receive(transport, offer), 1), "replica")
    assert sent.fingerprints["a"] == sent.fingerprints["b"]


def test_parameters_that_need_gradients_are_sent_plain(make: Make) -> None:
    """A trainer's own parameters can be handed over as they are."""
    transport = make()
    offer = transport.open(1)
    parameter = torch.nn.Parameter(torch.ones(4))

    send(transport, offer, {"p": parameter})

    assert not receive(transport, offer)["p"].requires_grad


FAULTS: dict[str, tuple[Callable[[WeightSink, dict[str, Tensor]], object], str]] = {
    "unknown": (lambda sink, _: sink.write({"who": torch.ones(1)}), "who"),
    "twice": (lambda sink, tensors: [sink.write({"norm.weight": tensors["norm.weight"]}) for _ in range(2)], "norm"),
    "misshapen": (lambda sink, _: sink.write({"norm.weight": torch.ones(9)}), "norm.weight"),
    "mistyped": (lambda sink, _: sink.write({"norm.weight": torch.ones(8, dtype=torch.float64)}), "norm.weight"),
    "missing": (lambda sink, tensors: (sink.write({"big": tensors["big"]}), sink.finish()), "embed.weight"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_tensor_that_was_not_announced_so_ends_the_transfer(make: Make, fault: str) -> None:
    """Unknown, repeated, misshapen, mistyped and missing tensors are named, and nothing becomes readable."""
    transport, tensors = make(), some_tensors()
    offer = transport.open(1)
    sink = transport.sink(offer)
    sink.begin(manifest_of(tensors.items(), version=1))
    act, name = FAULTS[fault]

    with pytest.raises(CoverageError, match=name):
        act(sink, tensors)

    with pytest.raises(WeightSyncError, match="version 1"):
        transport.source(offer)
    with pytest.raises(WeightSyncError, match="no tensors now"):
        sink.write({})


def test_an_announcement_must_be_a_map(make: Make) -> None:
    """A name announced twice, or tied to nothing, is refused before any byte is written."""
    transport = make()
    good = manifest_of(some_tensors().items(), version=1)
    twice = attrs.evolve(good, tensors=(*good.tensors, good.tensors[0]))
    loose = attrs.evolve(good, tied={"head": "nowhere"})

    for manifest in (twice, loose):
        with pytest.raises(CoverageError):
            transport.sink(transport.open(1)).begin(manifest)


def test_an_unfinished_version_is_unreadable(make: Make) -> None:
    """Before begin, in the middle, and after abort there is nothing to read; abort is idempotent."""
    transport, tensors = make(), some_tensors()
    offer = transport.open(1)
    sink = transport.sink(offer)
    steps = (
        lambda: None,
        lambda: sink.begin(manifest_of(tensors.items(), version=1)),
        lambda: sink.write(tensors),
        sink.abort,
        sink.abort,
    )

    for step in steps:
        step()
        with pytest.raises(WeightSyncError, match="version 1"):
            transport.source(offer)


def test_another_version_than_offered_is_refused(make: Make) -> None:
    """A sender cannot announce, and a reader cannot read, a version the offer does not name."""
    transport, tensors = make(), some_tensors()
    offer = transport.open(5)

    with pytest.raises(WeightSyncError, match="version 6"):
        transport.sink(offer).begin(manifest_of(tensors.items(), version=6))
    send(transport, offer, tensors)
    with pytest.raises(WeightSyncError):
        transport.source(attrs.evolve(offer, version=6))


def test_a_released_version_is_gone(make: Make) -> None:
    """Release is idempotent, makes the version unreadable, and close does so for every offer."""
    transport, tensors = make(), some_tensors()
    first, second = transport.open(1), transport.open(2)
    send(transport, first, tensors)
    send(transport, second, tensors)

    transport.release(first)
    transport.release(first)
    with pytest.raises(WeightSyncError):
        make().source(first)
    transport.close()
    transport.close()
    with pytest.raises(WeightSyncError):
        make().source(second)


def test_one_flipped_byte_is_found(make: Make, tmp_path: Path) -> None:
    """A byte that changes after the sender proved it makes the receipts disagree, by tensor name."""
    transport = make()
    offer = transport.open(1)
    tensors = {"first": torch.arange(256, dtype=torch.uint8), "second": torch.full((256,), 7, dtype=torch.uint8)}
    sent = send(transport, offer, tensors)
    path = offer.location.get("path") or next(Path(str(offer.location["folder"])).glob("*.safetensors"))
    with open(path, "r+b") as file:  # noqa: PTH123  it may be a descriptor of this process
        place = file.read().index(bytes([7] * 256)) + 100
        file.seek(place)
        file.write(bytes([8]))

    received = receive(transport, offer)

    with pytest.raises(FingerprintMismatch, match="replica/1 holds other bytes of 'second'"):
        compare(sent, receipt_for(received, 1), "replica/1")


def test_a_segment_released_while_it_is_read_is_noticed(make: Make) -> None:
    """A reader that was given up on learns that what it read is void; one on disk keeps its mapped files."""
    transport = make(bucket_bytes=100)
    offer = transport.open(1)
    tensors = some_tensors()
    send(transport, offer, tensors)
    reading = transport.source(offer).buckets()
    next(reading)

    transport.release(offer)

    with pytest.raises(WeightSyncError):
        list(reading)


def test_a_stale_offer_never_writes_into_what_took_its_place(make: Make, tmp_path: Path) -> None:
    """Once an offer is released its number or path may belong to another file; the sink refuses it."""
    transport = make()
    stale = transport.open(1)
    transport.release(stale)
    victim = (tmp_path / "victim").open("w+b")
    victim.write(b"precious")
    victim.flush()

    with pytest.raises(WeightSyncError):
        make().sink(stale).begin(manifest_of(some_tensors().items(), version=1))

    assert (tmp_path / "victim").read_bytes() == b"precious"
    victim.close()
    (tmp_path / "victim").unlink()


def test_too_little_room_is_an_error_with_sizes(make: Make) -> None:
    """A version that cannot fit is refused before its first byte, and nothing is left behind."""
    transport = make()
    offer = transport.open(1)
    huge = manifest_of({"huge": torch.empty(2**50, device="meta")}.items(), version=1)

    with pytest.raises((ResourceError, StorageError), match=r"4503599\.63 GB"):
        transport.sink(offer).begin(huge)

    with pytest.raises(WeightSyncError):
        transport.source(offer)


def test_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    """When a write fails half way the files of the version are removed and the error says what to do."""
    program = f"""
import resource, torch
from pathlib import Path
from areal_core.contract.errors import StorageError
from areal_local.transports.config import DiskConfig
from areal_local.transports.disk import DiskTransport
from areal_core.weights.tensors import manifest_of

transport = DiskTransport(DiskConfig(root={str(tmp_path)!r}))
offer = transport.open(1)
sink = transport.sink(offer)
tensors = {{"small": torch.ones(10), "large": torch.ones(100_000)}}
sink.begin(manifest_of(tensors.items(), version=1))
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
sink.write({{"small": tensors["small"]}})
try:
    sink.write({{"large": tensors["large"]}})
except StorageError as error:
    assert "free space" in error.fix, error
    assert list(Path(offer.location["folder"]).iterdir()) == []
    print("refused")
transport.close()
"""

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)

    assert (done.returncode, done.stdout.strip()) == (0, "refused"), done.stderr
    assert list(tmp_path.iterdir()) == []


def test_descriptors_do_not_pile_up(make: Make) -> None:
    """Fifty updates leave no more open files than one."""
    transport = make()
    counts = []
    for version in range(1, 51):
        offer = transport.open(version)
        send(transport, offer, some_tensors())
        receive(transport, offer)
        transport.release(offer)
        counts.append(len(list(Path("/proc/self/fd").iterdir())) if Path("/proc/self/fd").is_dir() else 0)

    assert counts[0] == counts[-1], f"open files grew: {counts}"


@pytest.mark.parametrize(
    "make",
    [partial(DiskTransport, DiskConfig(root="here")), partial(ShmTransport, ShmConfig(backing="file", folder="here"))],
    ids=["disk", "shm"],
)
def test_an_offer_is_read_from_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[], WeightTransport]
) -> None:
    """A folder may be named as one is where the run is started; its workers may run elsewhere."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path)
    sender, tensors = make(), some_tensors()
    offer = sender.open(1)
    send(sender, offer, tensors)

    monkeypatch.chdir("/")
    receiver = make()
    found = receive(receiver, offer)

    assert {name: torch.equal(found[name], tensor) for name, tensor in tensors.items()} == dict.fromkeys(tensors, True)
    receiver.close()
    sender.release(offer)
    sender.close()


def test_a_folder_that_cannot_be_made_is_a_storage_error(tmp_path: Path) -> None:
    """A root below a file is named in a StorageError."""
    (tmp_path / "file").write_text("")

    with pytest.raises(StorageError, match="file"):
        DiskTransport(DiskConfig(root=str(tmp_path / "file" / "root"))).open(1)
