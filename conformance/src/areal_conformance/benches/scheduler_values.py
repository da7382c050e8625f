"""One of everything that travels between a controller and its workers, and whether two of a kind are the same.

Knows: plain data, contract types with no field left at its default, tensors of every layout.
Does not know: any codec.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from typing import Any

import attrs

from areal_core.contract import data, errors, inference, scheduler, train, weights, workflow
from areal_core.contract.errors import ArealError
from areal_core.contract.ids import RequestId


def plain_values() -> dict[str, Any]:
    """Return plain data by name. Any: that is the point."""
    return {
        "none": None,
        "booleans": [True, False],
        "integers": [0, 1, -1, 255, 256, 2**31, -(2**31), 2**63 - 1, -(2**63)],
        "floats": [0.0, -0.0, 1.5, 1e-300, math.pi, math.inf, -math.inf, math.nan],
        "texts": ["", "a", "\u00e9\u4e2d\U0001f600", "line\nline\x00end", "x" * 70_000],
        "bytes": [b"", b"\x00\xff\x80", bytes(range(256)) * 300],
        "empty containers": [[], (), {}, frozenset()],
        "nested": {"a": [1, (2, [3, (4.0, "5")]), {"b": (None, True)}], "c": {"d": {"e": []}}},
        "tuple, not list": (1, 2),
        "list, not tuple": [1, 2],
        "one, not true": [1, True, 0, False, 1.0],
        "keys": {1: "one", "1": "text", b"1": "bytes", 2.5: "float"},
        "sets": frozenset({1, 2, 3}),
        "many": list(range(5000)),
    }


def contract_values() -> dict[str, Any]:
    """Return one value of every contract type by name; no field is at its default."""
    sampling = inference.SamplingParams(
        max_new_tokens=7,
        min_new_tokens=2,
        temperature=0.3,
        top_p=0.9,
        top_k=5,
        stop_token_ids=(3, 4),
        stop=("a", "bc"),
        ignore_eos=True,
        seed=2**40,
        min_p=0.05,
        frequency_penalty=0.5,
        presence_penalty=-0.25,
        repetition_penalty=1.25,
    )
    structure = inference.Structure(grammar=inference.Grammar.REGEX, text="yes|no")
    optimizer = train.OptimizerSpec(
        lr=0.1,
        betas=(0.8, 0.7),  # type: ignore[arg-type]  # attrs tells mypy of the converter tuple
        eps=1e-3,
        weight_decay=0.2,
        max_grad_norm=3.0,
        schedule="cosine",
        warmup_steps=4,
        total_steps=9,
        min_lr_ratio=0.5,
    )
    tensor = weights.TensorSpec(name="model.norm.weight", shape=(64, 2), dtype="float32")
    found: list[Any] = [
        sampling,
        optimizer,
        tensor,
        weights.TensorSpec(name="scalar", shape=(), dtype="bfloat16"),
        weights.WeightManifest(version=4, tensors=(tensor, tensor), tied={"lm_head.weight": "embed"}),
        weights.Receipt(version=4, num_bytes=2**40, seconds=0.25, fingerprints={"a": "f0", "b": "0f"}),
        weights.Offer(transport="disk", version=4, location={"folder": "/x", "port": 7}),
        inference.GenerationRequest(
            request_id=RequestId("t/0/3#1"),
            input_ids=(5, 9),
            sampling=sampling,
            num_prior=1,
            extras={"k": (1,)},
            adapter="mine",
            structure=structure,
        ),
        structure,
        inference.Generation(
            output_ids=(4, 7, 1),
            logprobs=(-0.7, -0.1, -0.2),
            version_spans=(
                inference.VersionSpan(start=0, stop=1, version=3),
                inference.VersionSpan(start=1, stop=3, version=4),
            ),
            stop_reason=data.StopReason.LENGTH,
            timings=inference.Timings(queued_s=0.5, first_token_s=0.25, total_s=1.5),
            token_extras={"k": [1, 2, 3]},
        ),
        inference.InferenceSpec(
            model_path="/m",
            dtype="bfloat16",
            layout={"t": 2},
            context_length=9,
            max_concurrent=3,
            seed=8,
            device="cuda",
            replica=2,
            options={"o": [1, None]},
        ),
        inference.EngineStatus(
            version=3, num_running=1, num_waiting=2, paused=True, tokens_generated=5, busy_s=0.5, metrics={"m": 1.5}
        ),
        train.LoraSpec(rank=8, alpha=16.0, targets=("q_proj", "v_proj")),
        train.TrainSpec(
            role="actor",
            model_path="/m",
            head=train.Head.VALUE,
            dtype="bfloat16",
            layout={"d": 2, "t": 1},
            optimizer=optimizer,
            temperature=0.7,
            max_tokens_per_microbatch=99,
            seed=5,
            options={"x": {"y": 1}},
            lora=train.LoraSpec(rank=1, alpha=2.0, targets=("a",)),
        ),
        train.RankContext(
            rank=1, world_size=2, local_rank=1, device="cpu", init_method="tcp://127.0.0.1:45", timeout_s=7.0
        ),
        train.EngineInfo(
            engine="e",
            engine_version="1",
            device="cpu",
            num_parameters=2**40,
            context_length=9,
            data_rank=1,
            data_size=2,
            details={"a": "b"},
        ),
        train.TrainReport(
            loss=0.5,
            grad_norm=math.inf,
            lr=1e-6,
            stepped=False,
            num_microbatches=3,
            num_tokens=7,
            seconds=0.5,
            metrics={"kl": train.Sum(value=0.25, weight=3.0)},
        ),
        train.ObjectiveSpec(name="ppo", config={"clip": 0.2, "deep": [{"a": 1}]}),
        scheduler.Job(
            role="r",
            engine_role="infer",
            backend="b",
            num_workers=3,
            device="cuda",
            devices_per_worker=2,
            cpus_per_worker=4,
            env={"A": "b"},
            python="/p",
            imports=("a.py", "b.py"),
            num_hosts=3,
            hosts=("h1", "h2"),
            memory=2**40,
            image="registry/image:1",
            together_with=scheduler.Together(role="other", share="devices"),
        ),
        scheduler.Together(role="other", share="devices"),
        scheduler.WorkerStatus(
            id="r/1", role="r", rank=1, state="silent", pid=9, exit_code=-9, log_path="/l", log_tail=("a", "b")
        ),
        workflow.RewardInput(
            prompt="p", completion="c", completion_ids=(1, 2), stop_reason="stop", row={"answer": "42", "n": [1]}
        ),
        workflow.RewardResult(value=None, status="timeout", components={"c": 0.5}, detail="d", seconds=1.5),
    ]
    named = {f"{type(value).__name__} {number}": value for number, value in enumerate(found)}
    enums = (data.StopReason, inference.PauseMode, train.Output, train.Head, scheduler.WorkerState, scheduler.Share)
    return {**named, **{kind.__name__: list(kind) for kind in enums}}


def every_error() -> list[ArealError]:
    """Return one instance of every error of the contract, with texts that are easy to lose."""
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, ArealError)]
    return [
        kind(f"what of {kind.__name__}: caf\u00e9", why="line one\nline two", fix=f"run `{number}`")
        for number, kind in enumerate(kinds)
    ]


def tensor_values() -> dict[str, Any]:
    """Return tensors and what holds them, by name. Any: torch is imported here only."""
    import torch

    from areal_core.contract.batch import Batch

    generator = torch.Generator().manual_seed(7)
    base = torch.randn(6, 5, generator=generator)
    dtypes = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8)
    values: dict[str, Any] = {str(dtype): (base * 50).abs().to(dtype) for dtype in dtypes}
    values |= {
        "bool": base > 0,
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 3),
        "transposed": base.t(),
        "strided": base[::2, 1::2],
        "expanded": torch.arange(3.0)[:, None].expand(3, 4),
        "not finite": torch.tensor([math.inf, -math.inf, math.nan, -0.0]),
        "large": torch.arange(1_200_000, dtype=torch.int32),
        "several": [base, {"again": base[1:]}, (base.to(torch.bfloat16), 3)],
        "batch": Batch.of(
            {"input_ids": torch.arange(9), "logprobs": torch.randn(9, generator=generator)},
            {"rewards": torch.tensor([1.0, -2.0, 0.0])},
            torch.tensor([4, 2, 3]),
        ),
        "generation": inference.Generation(
            output_ids=(4, 7),
            logprobs=(-0.5, -1.0),
            version_spans=(inference.VersionSpan(start=0, stop=2, version=1),),
            stop_reason="stop",
            token_extras={"routed_experts": torch.arange(8, dtype=torch.int32).reshape(2, 2, 2)},
        ),
        "episode": data.Episode(trajectories=(_trajectory(),), task_id="t/0/3", group_id="g", metrics={"m": 0.5}),  # type: ignore[arg-type]
    }
    return values


def difference(sent: Any, given: Any, path: str = "value") -> str | None:
    """Return where two values differ, None if they are the same in type and bits. Any: everything is compared."""
    if isinstance(sent, Mapping):
        return _of_mappings(sent, given, path)
    if type(sent) is not type(given):
        return f"{path} was {type(sent).__name__} {sent!r:.60}, is {type(given).__name__} {given!r:.60}"
    if isinstance(sent, float):
        return None if struct.pack("<d", sent) == struct.pack("<d", given) else f"{path} was {sent!r}, is {given!r}"
    if isinstance(sent, list | tuple):
        if len(sent) != len(given):
            return f"{path} had {len(sent)} entries, has {len(given)}"
        pairs = enumerate(zip(sent, given, strict=True))
        return _first(difference(one, other, f"{path}[{number}]") for number, (one, other) in pairs)
    if hasattr(sent, "flat"):
        return difference(sent.flat(), given.flat(), path)
    if attrs.has(type(sent)):
        names = [field.name for field in attrs.fields(type(sent))]
        return _first(difference(getattr(sent, name), getattr(given, name), f"{path}.{name}") for name in names)
    if hasattr(sent, "untyped_storage"):
        return _of_tensors(sent, given, path)
    return None if sent == given else f"{path} was {sent!r:.60}, is {given!r:.60}"


def _of_mappings(sent: Mapping[Any, Any], given: Any, path: str) -> str | None:
    if not isinstance(given, Mapping):
        return f"{path} was a mapping, is {type(given).__name__}"
    before, after = [(type(key), key) for key in sent], [(type(key), key) for key in given]
    if sorted(map(repr, before)) != sorted(map(repr, after)):
        return f"{path} had keys {list(sent)!r:.80}, has {list(given)!r:.80}"
    return _first(difference(value, given[key], f"{path}[{key!r}]") for key, value in sent.items())


def _of_tensors(sent: Any, given: Any, path: str) -> str | None:
    import torch

    if (sent.dtype, tuple(sent.shape)) != (given.dtype, tuple(given.shape)):
        return f"{path} was {sent.dtype} {tuple(sent.shape)}, is {given.dtype} {tuple(given.shape)}"
    one, other = (tensor.cpu().contiguous().reshape(-1).view(torch.uint8) for tensor in (sent, given))
    wrong = int((one != other).sum())
    return None if not wrong else f"{path} differs in {wrong} of {len(one)} bytes"


def _first(found: Any) -> str | None:
    return next((text for text in found if text is not None), None)


def _trajectory() -> data.Trajectory:
    import torch

    return data.Trajectory(
        input_ids=torch.tensor([5, 9, 4]),
        loss_mask=torch.tensor([False, False, True]),
        logprobs=torch.tensor([0.0, 0.0, -0.7]),
        versions=torch.tensor([-1, -1, 3], dtype=torch.int32),
        reward=-1.5,
        stop_reason="stop",
        token_extras={"k": torch.tensor([0, 0, 1])},
        sequence_extras={"image": torch.ones(2, 2)},
    )
