"""What is encoded comes back equal and of the same types; what is garbage is a CodecError and nothing else."""

from __future__ import annotations

import contextlib
import subprocess
import sys

import attrs
import msgspec
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from areal_core.contract import (
    IMAGES,
    Episode,
    Generation,
    GenerationRequest,
    Grammar,
    ObjectiveSpec,
    Offer,
    Output,
    RewardResult,
    SamplingParams,
    StopReason,
    Structure,
    Sum,
    Timings,
    TrainReport,
    TrainSpec,
    Trajectory,
    VersionSpan,
    WeightManifest,
)
from areal_core.contract.batch import Batch
from areal_core.contract.errors import BatchError, CodecError, GenerationFailed, WorkerDied
from areal_core.contract.optional import ToolCall, ToolParse
from areal_worker import schema
from areal_worker.codec import MAX_FRAMES, MAX_HEADER_BYTES, decode, encode
from areal_worker.tensors import DTYPES

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec="utf-8"), max_size=20)
    | st.binary(max_size=20)
)
PLAIN = st.recursive(
    SCALARS | st.sampled_from([StopReason.STOP, Output.VALUES, SamplingParams(seed=7, stop=("x",)), Timings()]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=5) | st.integers(0, 9), inner, max_size=4)
        | st.frozensets(SCALARS, max_size=4)
    ),
    max_leaves=20,
)
DTYPE_NAMES = st.sampled_from(sorted(DTYPES))
SHAPES = st.lists(st.integers(0, 4), max_size=3)


def as_received(value: object) -> object:
    """Encode, copy every frame as a socket would, decode."""
    return decode([bytes(frame) for frame in encode(value)])


def same(left: object, right: object) -> bool:
    """Compare values and the types of all their parts."""
    if type(left) is not type(right):
        return False
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))  # type: ignore[arg-type]
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)  # type: ignore[index]
    return left == right


def trajectory() -> Trajectory:
    return Trajectory(
        input_ids=torch.tensor([5, 9, 4]),
        loss_mask=torch.tensor([False, True, True]),
        logprobs=torch.tensor([0.0, -0.7, -0.1]),
        versions=torch.tensor([-1, 3, 4], dtype=torch.int32),
        reward=1.0,
        stop_reason=StopReason.STOP,
        token_extras={"experts": torch.arange(6, dtype=torch.int8).reshape(3, 2)},
    )


@given(value=PLAIN)
def test_plain_data_and_contract_types_round_trip_exactly(value: object) -> None:
    """Lists stay lists, tuples tuples, enums enums, True is not 1."""
    assert same(value, as_received(value))


@given(value=PLAIN)
def test_encoding_is_a_function_of_the_value(value: object) -> None:
    """What was decoded encodes to the same frames again (sets apart, which have no order)."""
    once = encode(value)

    assert frozenset in map(type, _parts(value)) or once == encode(decode(once))


def _parts(value: object) -> list[object]:
    if isinstance(value, list | tuple):
        return [value, *(part for item in value for part in _parts(item))]
    if isinstance(value, dict):
        return [value, *(part for item in value.values() for part in _parts(item))]
    return [value]


@given(dtype=DTYPE_NAMES, shape=SHAPES, data=st.data(), transpose=st.booleans())
def test_tensors_round_trip_bit_for_bit(dtype: str, shape: list[int], data: st.DataObject, transpose: bool) -> None:
    """Every dtype and shape, also 0-dim, empty and not contiguous ones."""
    size = torch.empty(shape, dtype=DTYPES[dtype]).numel() * torch.empty(0, dtype=DTYPES[dtype]).element_size()
    raw = data.draw(st.binary(min_size=size, max_size=size))
    if dtype == "bool":
        raw = bytes(octet & 1 for octet in raw)
    tensor = torch.zeros(shape, dtype=DTYPES[dtype])
    if size:
        tensor = torch.frombuffer(bytearray(raw), dtype=DTYPES[dtype]).reshape(shape)
    if transpose and tensor.ndim >= 2:
        tensor = tensor.transpose(0, 1)

    received = as_received({"x": [tensor]})["x"][0]  # type: ignore[index]

    assert (tensor.dtype, tensor.shape) == (received.dtype, received.shape)
    assert tensor.contiguous().reshape(-1).view(torch.uint8).tolist() == received.reshape(-1).view(torch.uint8).tolist()


@pytest.mark.parametrize("offset", [0, 1, 3])
@pytest.mark.parametrize("readonly", [True, False])
def test_received_tensors_are_always_writable(offset: int, readonly: bool) -> None:
    """A read-only or badly aligned frame is copied, so that in-place operations work everywhere."""
    header, memory = encode(torch.arange(5, dtype=torch.int64))
    padded = bytearray(bytes(offset) + bytes(memory))
    frame = memoryview(bytes(padded) if readonly else padded)[offset:]

    tensor = decode([header, frame])

    assert tensor.add_(1).tolist() == [1, 2, 3, 4, 5]
    assert tensor.data_ptr() % 8 == 0
    assert readonly or offset or padded[0] == 1, "a writable aligned frame is used in place"


def test_a_contiguous_tensor_is_not_copied() -> None:
    """The frame is the tensor's own memory."""
    tensor = torch.zeros(4, requires_grad=True)

    frame = encode(tensor)[1]
    with torch.no_grad():
        tensor[0] = 1.0

    assert bytes(frame)[:4] == b"\x00\x00\x80?"


def test_batches_and_episodes_round_trip() -> None:
    """Batch and Trajectory, which hold tensors and mappings of tensors."""
    episode = Episode(trajectories=(trajectory(), trajectory()), task_id="t", group_id="g", metrics={"a": 1.0})
    batch = Batch.pack([episode])

    received_episode, received_batch = as_received((episode, batch))  # type: ignore[misc]

    assert (received_episode.newest_version, received_episode.task_id) == (4, "t")
    assert received_episode.trajectories[1].token_extras["experts"].tolist() == [[0, 1], [2, 3], [4, 5]]
    assert {name: (str(column.dtype), column.tolist()) for name, column in batch.flat().items()} == {
        name: (str(column.dtype), column.tolist()) for name, column in received_batch.flat().items()
    }


def test_an_empty_batch_round_trips() -> None:
    """A rank whose shard is empty still gets its columns."""
    batch = Batch.pack([])

    assert list(as_received(batch).flat()) == list(batch.flat())  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "value",
    [
        GenerationRequest(request_id="r", input_ids=(1, 2), extras={"adapter": None}),
        GenerationRequest(
            request_id="r",
            input_ids=(1, 7, 2, 7),
            sampling=SamplingParams(min_p=0.1, frequency_penalty=-0.5, repetition_penalty=1.2),
            extras={IMAGES: (b"\x89PNG\r\n\x1a\n\x00", b"\xff\xd8\xff" * 9)},
            structure=Structure(grammar=Grammar.REGEX, text="yes|no"),
        ),
        ToolParse(content="so", calls=(ToolCall(name="add", arguments='{"a": 1}'),)),
        Generation(
            output_ids=(4, 7),
            logprobs=(-0.7, float("-inf")),
            version_spans=(VersionSpan(start=0, stop=2, version=3),),
            stop_reason=StopReason.LENGTH,
        ),
        TrainSpec(role="actor", model_path="/m", layout={"d": 2}, options={"offload": True}),
        TrainReport(
            loss=1.0,
            grad_norm=float("inf"),
            lr=0.1,
            stepped=False,
            num_microbatches=1,
            num_tokens=3,
            seconds=0.1,
            metrics={"kl": Sum(value=1.0, weight=2.0)},
        ),
        ObjectiveSpec(name="ppo", config={"eps": 0.2, "mode": "token"}),
        Offer(transport="shm", version=3, location={"segment": "s", "size": 9}),
        WeightManifest(version=1, tensors=(), tied={"a": "b"}),
        RewardResult(value=None, status="timeout"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_contract_objects_come_back_equal(value: object) -> None:
    """attrs equality holds across the wire."""
    assert value == as_received(value)


class _PluginError(GenerationFailed):
    """A plugin's own refinement, unknown to the other side."""


@pytest.mark.parametrize("kind", [BatchError, WorkerDied, GenerationFailed])
def test_errors_arrive_as_themselves(kind: type[GenerationFailed]) -> None:
    """Class, what, why and fix survive."""
    received = as_received(kind("what", why="why", fix="fix"))

    assert (type(received), received.what, received.why, received.fix) == (kind, "what", "why", "fix")  # type: ignore[attr-defined]


def test_a_plugins_error_arrives_as_the_contract_error_it_refines() -> None:
    """Retrying decides by contract class, so the nearest one must survive."""
    received = as_received(_PluginError("what"))

    assert (type(received), received.retryable) == (GenerationFailed, True)  # type: ignore[attr-defined]


@attrs.frozen
class _NotOfTheContract:
    x: int = 1


class _Text(str):
    """A subclass of a scalar, which is none."""


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (_NotOfTheContract(), "_NotOfTheContract"),
        ({"f": [object()]}, "builtins.object"),
        (lambda: 0, "function"),
        ({"f": _Text("g")}, "_Text"),
        ([1, _Text("g")], "_Text"),
        (GenerationRequest(request_id="r", input_ids=(1,), adapter=_Text("g")), "_Text"),
        ({(1, 2): 3}, "tuple"),
        (2**70, "cannot be encoded"),
        ("\ud800", "cannot be encoded"),
        (torch.eye(2).to_sparse(), "sparse"),
        (torch.empty(2, device="meta"), "meta"),
    ],
)
def test_what_does_not_travel_is_refused_by_name(value: object, name: str) -> None:
    """The error names the type, not only the fact."""
    with pytest.raises(CodecError, match=name):
        encode(value)


@settings(max_examples=400, suppress_health_check=[HealthCheck.too_slow])
@given(frames=st.lists(st.binary(max_size=60), max_size=3))
def test_any_bytes_decode_or_raise_codec_error(frames: list[bytes]) -> None:
    """Garbage never raises anything else."""
    with contextlib.suppress(CodecError):
        decode(frames)


NODES = st.recursive(
    SCALARS | st.sampled_from([*schema.OBJECTS_BY_NAME, *schema.ENUMS, *schema.ERRORS, *DTYPES]),
    lambda inner: (
        st.tuples(st.integers(-1, 10), st.lists(inner, max_size=5)).map(lambda pair: [pair[0], *pair[1]])
        | st.dictionaries(SCALARS.filter(lambda key: type(key) is not float), inner, max_size=3)
    ),
    max_leaves=15,
)


@settings(max_examples=400, suppress_health_check=[HealthCheck.too_slow])
@given(node=NODES, frame=st.binary(max_size=16))
def test_wellformed_msgpack_of_any_shape_decodes_or_raises_codec_error(node: object, frame: bytes) -> None:
    """Headers nobody of ours wrote, with tags and class names that exist, never raise anything else."""
    with contextlib.suppress(CodecError):
        decode([msgspec.msgpack.encode(node), frame])


@given(data=st.data())
def test_a_damaged_message_decodes_or_raises_codec_error(data: st.DataObject) -> None:
    """One flipped byte or a cut anywhere in a real message."""
    frames = [bytearray(frame) for frame in encode(("call", Batch.pack([]), trajectory(), SamplingParams()))]
    frame = frames[data.draw(st.integers(0, len(frames) - 1))]
    place = data.draw(st.integers(0, max(len(frame) - 1, 0)))
    if frame and data.draw(st.booleans()):
        frame[place] ^= data.draw(st.integers(1, 255))
    else:
        del frame[place:]

    with contextlib.suppress(CodecError):
        decode([memoryview(frame) for frame in frames])


@pytest.mark.parametrize("depth", [500, 100_000])
def test_deep_nesting_is_a_codec_error_on_both_sides(depth: int) -> None:
    """Neither encoder nor decoder overflows the stack."""
    with pytest.raises(CodecError):
        decode([b"\x92\x02" * depth + b"\xc0", b""])
    value: list[object] = []
    for _ in range(100_000):
        value = [value]

    with pytest.raises(CodecError):
        encode(value)


def test_a_tensor_cannot_claim_more_than_its_frame() -> None:
    """Sizes are checked before anything is allocated."""
    header = msgspec.msgpack.encode([8, "float32", [2**40], 1])

    with pytest.raises(CodecError, match="4 bytes"):
        decode([header, b"\0\0\0\0"])


@pytest.mark.parametrize("index", [0, -1, 2, True, "1"])
def test_a_tensor_names_a_frame_of_its_own(index: object) -> None:
    """The header is no tensor, and no frame is counted from the end."""
    header = msgspec.msgpack.encode([8, "uint8", [len(msgspec.msgpack.encode([8, "uint8", [9], index]))], index])

    with pytest.raises(CodecError, match="names frame"):
        decode([header, bytes(len(header))])


FIT = st.sampled_from(
    [("uint8", [8]), ("int32", [2]), ("int64", [1]), ("int64", []), ("float32", [2, 1]), ("bool", [0])]
)


@settings(max_examples=300)
@given(
    nodes=st.lists(st.tuples(FIT, st.integers(0, 4)), max_size=6), frames=st.lists(st.binary(max_size=9), max_size=4)
)
def test_tensors_take_no_more_memory_than_the_frames_that_came(
    nodes: list[tuple[tuple[str, list[int]], int]], frames: list[bytes]
) -> None:
    """However a header names frames: each belongs to one tensor, so what is copied is copied once."""
    header = msgspec.msgpack.encode([2, *[[8, dtype, shape, index] for (dtype, shape), index in nodes]])
    with contextlib.suppress(CodecError):
        tensors = decode([header, *frames])

        assert sum(tensor.nbytes for tensor in tensors) <= sum(map(len, frames))


def test_two_tensors_cannot_be_made_of_one_frame() -> None:
    """Else half a megabyte of a header would make two gigabytes of half a megabyte."""
    header = msgspec.msgpack.encode([2, [8, "uint8", [4], 1], [8, "uint8", [4], 1]])

    with pytest.raises(CodecError, match="another tensor's"):
        decode([header, bytes(4)])


@pytest.mark.parametrize(
    "node",
    [
        [8, "uint8", [2**63] * 50_000, 1],
        [8, "uint8", ["x" * 450_000], 1],
        [8, "x" * 450_000, [1], 1],
        [8, "uint8", [1], "x" * 450_000],
        [5, "x" * 450_000],
        [6, "StopReason", "x" * 450_000],
    ],
    ids=["shape", "length", "dtype", "frame", "class", "member"],
)
def test_what_is_too_long_is_refused_unread_and_told_in_few_words(node: object) -> None:
    """Half a megabyte of lengths is not multiplied, and an error does not carry the message it is about."""
    with pytest.raises(CodecError) as caught:
        decode([msgspec.msgpack.encode(node), b"x"])

    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    "frames",
    [
        [b"\xc0", *[b""] * MAX_FRAMES],
        [memoryview(bytearray(MAX_HEADER_BYTES + 1))],
        [b"\xc0", *[memoryview(bytearray(MAX_HEADER_BYTES))] * 33],
    ],
    ids=["frames", "header", "bytes"],
)
def test_a_message_above_the_bounds_is_refused_before_it_is_read(frames: list[bytes]) -> None:
    """Those of `encode`; the error says how large it is, how large it may be, and what to do."""
    with pytest.raises(CodecError, match=r"is too large(.|\n)*why: at most(.|\n)*fix: send it in parts"):
        decode(frames)


@pytest.mark.parametrize("tag", [0, 1])
def test_a_flat_sequence_holds_scalars_only(tag: int) -> None:
    """What claims to be flat is not looked into again, so nothing may hide in it."""
    with pytest.raises(CodecError, match="flat"):
        decode([msgspec.msgpack.encode([tag, [1, [8, "uint8", [1], 1]]])])


def test_plain_messages_need_no_torch() -> None:
    """A process that handles no tensor never pays for importing torch."""
    code = (
        "import sys; from areal_core.contract import GenerationRequest as R; from areal_worker.codec import *\n"
        "r = R(request_id='a', input_ids=(1,)); assert decode(encode(r)) == r; sys.exit('torch' in sys.modules)"
    )

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
