"""A user's file with an engine that does nothing: what is left of a call is the call. Used by `rpc.py`."""

from __future__ import annotations

from areal_core.contract.data import StopReason
from areal_core.contract.inference import EngineStatus, Generation, GenerationRequest, InferenceSpec, VersionSpan
from areal_core.contract.train import EngineInfo
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


EchoEngine.__areal__ = (Mark("infer", "echo"),)  # type: ignore[attr-defined]  # what the decorators of `marks` set
