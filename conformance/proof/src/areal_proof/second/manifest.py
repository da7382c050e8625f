"""What the second implementations claim: everything optional that a check looks at.

Knows: names, factories and claims.
Does not know: torch, or any engine.
"""

from __future__ import annotations

from areal_core.plugins.claims import full, not_yet, unsupported, when
from areal_core.plugins.manifest import Manifest

_CONFORMANCE = "areal_proof.second.conformance"

TRAIN = Manifest(
    role="train",
    name="second",
    contract=(1, 4),
    factory="areal_proof.second.train.engine:SecondTrainEngine",
    config="areal_proof.second.train.config:SecondTrainConfig",
    requires=("torch>=2.11", "safetensors>=0.5", "tensordict>=0.10"),
    extra="engine",
    devices=("cpu", "cuda"),
    summary="a second opinion on training: functional torch, padded, slow, whole weights on every rank",
    claims={
        "parallel.data": full(),
        "parallel.tensor": full(),
        "parallel.pipeline": not_yet("every rank has all layers"),
        "parallel.context": not_yet("every rank has whole sequences"),
        "parallel.expert": not_yet("every rank has all experts"),
        "checkpoint.exact": full(),
        "checkpoint.background": full(),
        "checkpoint.reshard": full(),
        "precision.bfloat16": full(),
        "precision.float16": unsupported("float16 needs loss scaling"),
        "memory.offload": full(),
        "memory.cpu_offload": not_yet("no check of the suite looks at it"),
        "memory.activation_checkpointing": full(),
        "head.value": full(),
        "packing": full(),
        "lora": full(),
        "weights.adapter": full(),
        "images": full(),
        "experts.replay": full(),
        "candidates": full(),
    },
    conformance=f"{_CONFORMANCE}:TRAIN",
)

INFER = Manifest(
    role="infer",
    name="second",
    contract=(1, 5),
    factory="areal_proof.second.infer.engine:SecondInferenceEngine",
    config="areal_proof.second.infer.config:SecondInferenceConfig",
    requires=("torch>=2.11", "safetensors>=0.5", "regex>=2024.5", "pillow>=11"),
    extra="engine",
    devices=("cpu", "cuda"),
    summary="a second opinion on generation: one coroutine, a whole forward for every token",
    claims={
        "weights.staged": full(),
        "weights.in_flight": full(),
        "weights.cast": full(),
        "weights.adapter": full(),
        "weights.kv_kept": unsupported("nothing is cached: every token is computed anew from its whole sequence"),
        "pause.keep": full(),
        "pause.abort": full(),
        "sampling.top_p": full(),
        "sampling.top_k": full(),
        "sampling.min_tokens": full(),
        "sampling.stop_strings": full(),
        "sampling.stop_tokens": full(),
        "sampling.seed": full(),
        "sampling.seed_continues": full(),
        "sampling.ignore_eos": full(),
        "sampling.min_p": full(),
        "sampling.penalties": full(),
        "sampling.repetition_penalty": full(),
        "sampling.structured": full(),
        "deterministic": full(),
        "parallel.tensor": full(),
        "parallel.pipeline": full(),
        "replica.hosts": full(),
        "prefix_cache": full(),
        "scoring": full(),
        "memory.sleep": full(),
        "tools.parse": when("tool_parser == hermes", "without a parser named no call is read"),
        "lora.adapters": full(),
        "experts.trace": full(),
        "images": full(),
        "transport.disk": full(),
        "transport.shm": full(),
        "transport.collective": not_yet("weights arrive by disk or shared memory"),
    },
    conformance=f"{_CONFORMANCE}:INFER",
)

SCHEDULER = Manifest(
    role="scheduler",
    name="second",
    contract=(1, 1),
    factory="areal_proof.second.scheduler:SecondScheduler",
    config="areal_proof.second.scheduler:SecondSchedulerConfig",
    devices=("cpu", "cuda"),
    summary="a second opinion on starting workers: socket pairs, asyncio streams, hosts that are loopback aliases",
    claims={
        "hosts.one": full(),
        "hosts.spread": full(),
        "hosts.named": full(),
        "memory": not_yet("nobody counts it"),
        "image": not_yet("workers are processes"),
        "together.host": full(),
        "together.devices": full(),
    },
    conformance=f"{_CONFORMANCE}:SCHEDULER",
)

TRANSPORT = Manifest(
    role="transport",
    name="second",
    contract=(1, 2),
    factory="areal_proof.second.transport:SecondTransport",
    config="areal_proof.second.transport_config:SecondTransportConfig",
    requires=("torch>=2.11", "psutil>=6"),
    extra="engine",
    devices=("cpu", "cuda", "npu"),
    summary="a second opinion on carrying weights: a socket of the controller, and a key",
    claims={"across_hosts": unsupported("the controller serves on loopback")},
    conformance=f"{_CONFORMANCE}:TRANSPORT",
)

WORKFLOW = Manifest(
    role="workflow",
    name="second",
    contract=(1, 3),
    factory="areal_proof.second.workflow:SecondWorkflow",
    config="areal_proof.second.workflow:SecondConfig",
    requires=("torch>=2.11",),
    extra="engine",
    devices=("cpu", "cuda", "npu"),
    summary="a second opinion on making an episode: two turns in one trajectory",
    claims={"multi_turn": full(), "images": full(), "adapters": full()},
    conformance=f"{_CONFORMANCE}:WORKFLOW",
)

RENDERER = Manifest(
    role="renderer",
    name="second",
    contract=(1, 0),
    factory="areal_proof.second.renderer:SecondRenderer",
    config="areal_proof.second.renderer:SecondRendererConfig",
    devices=("cpu", "cuda", "npu"),
    summary="a second opinion on conversations: bridges cut out of the template's own text",
)

ENDPOINT = Manifest(
    role="endpoint",
    name="second",
    contract=(1, 0),
    factory="areal_proof.second.endpoint:SecondEndpoint",
    config="areal_proof.second.endpoint:SecondEndpointConfig",
    requires=("torch>=2.11",),
    extra="engine",
    devices=("cpu", "cuda", "npu"),
    summary="a second opinion on where agents ask: plain handlers, bodies read by hand",
)
