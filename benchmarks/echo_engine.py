"""A user's file with engines that do nothing: what is left of a call is the call."""

from __future__ import annotations

from pathlib import Path

from areal_core.contract.batch import Batch
from areal_core.contract.data import StopReason
from areal_core.contract.inference import EngineStatus, Generation, GenerationRequest, InferenceSpec, VersionSpan
from areal_core.contract.train import EngineInfo, Objective, Output, RankContext, TrainReport, TrainSpec
from areal_core.plugins.marks import Mark


class EchoEngine:
    """Answers `generate` with one token, whatever came with the request."""

    async def start(self, spec: InferenceSpec) -> EngineInfo:
        """Hold nothing."""
        return EngineInfo(engine="echo", engine_version="1", device="cpu", num_parameters=0, context_length=0)

    async def generate(self, request: GenerationRequest) -> Generation:
        """Look at the payload, so that it has arrived, and answer."""
        payload = request.extras.get("payload")
        token = 0 if payload is None else int(payload.reshape(-1)[-1])
        span = VersionSpan(start=0, stop=1, version=0)
        return Generation(output_ids=(token,), logprobs=(0.0,), version_spans=(span,), stop_reason=StopReason.STOP)

    async def status(self) -> EngineStatus:
        """Return the smallest answer there is."""
        return EngineStatus(version=0, num_running=0, num_waiting=0, paused=False)

    async def close(self) -> None:
        """Do nothing."""


class LongEchoEngine(EchoEngine):
    """Answers with as many tokens as it may."""

    async def generate(self, request: GenerationRequest) -> Generation:
        """Count up."""
        number = request.sampling.max_new_tokens
        span = VersionSpan(start=0, stop=number, version=0)
        return Generation(
            output_ids=range(number), logprobs=(-0.5,) * number, version_spans=(span,), stop_reason=StopReason.STOP
        )


class EchoTrainer:
    """Takes every batch and computes nothing: what a step costs beside it is the controller's."""

    def __init__(self) -> None:
        self.version = 0

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        """Be one data rank of as many as there are."""
        return EngineInfo(
            engine="echo",
            engine_version="1",
            device="cpu",
            num_parameters=0,
            context_length=0,
            data_rank=rank.rank,
            data_size=rank.world_size,
        )

    def train_step(self, batch: Batch, objective: Objective) -> TrainReport:
        """Report a step."""
        return TrainReport(
            loss=0.0,
            grad_norm=1.0,
            lr=0.0,
            stepped=True,
            num_microbatches=1,
            num_tokens=batch.num_tokens,
            seconds=0.0,
        )

    def forward(self, batch: Batch, outputs: frozenset[Output]) -> Batch:
        """Return the sampler's log-probs for whatever is asked."""
        return batch.with_tokens(**{output.value: batch.tokens["logprobs"] for output in outputs})

    def save_weights(self, path: Path) -> None:
        """Have none."""

    def save_state(self, path: Path) -> None:
        """Have none."""

    def close(self) -> None:
        """Do nothing."""


EchoEngine.__areal__ = (Mark("infer", "echo"),)  # type: ignore[attr-defined]  # what the decorators of `marks` set
LongEchoEngine.__areal__ = (Mark("infer", "long_echo"),)  # type: ignore[attr-defined]
EchoTrainer.__areal__ = (Mark("train", "echo"),)  # type: ignore[attr-defined]
