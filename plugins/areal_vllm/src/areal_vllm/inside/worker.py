"""The methods the plugin adds to every vLLM worker, called by name through `/collective_rpc`.

Every answer is JSON. All start with `areal_`, so that none meets one of vLLM's.

Knows: the worker it is mixed into.
Does not know: HTTP, versions, requests.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

from areal_serving.proof import Proof
from areal_torch.collective.group import place
from areal_vllm.inside import ascend, kernels, loading, reading, sampling, scoring, sleeping, stages
from areal_vllm.inside import tools as tool_calls


class WorkerExtension:
    """Mixed into vLLM's worker class by `--worker-extension-cls`. Any: JSON, and vLLM's runner."""

    model_runner: Any
    weight_transfer_engine: Any
    areal_proof: Proof | None
    """Of the folder asked about last."""
    _areal_prepared: dict[str, Any] | None
    _areal_freed: dict[int, tuple[Any, int]] | None

    def areal_prepare(self) -> dict[str, Any]:
        """Install the hooks, once; return what this worker is and which of them hold."""
        if self.__dict__.get("_areal_prepared") is None:
            runner = self.model_runner
            kernels.allow_tiles(runner)
            stages.make_room(runner)
            if runner.device.type == "npu":
                ascend.tell_processed(runner)
            self._areal_prepared = {
                "pid": os.getpid(),
                "runner": type(runner).__name__,
                "sampling": sampling.install(runner),
                "scoring": scoring.install(runner),
                "place": place(),
                "unfit": kernels.why_unfit(runner),
            }
        assert self._areal_prepared is not None
        return self._areal_prepared

    def areal_prove(self, folder: str) -> dict[str, Any]:
        """Begin to read a staged folder, or say how far it is; asked again and again until "done"."""
        proof: Proof | None = self.__dict__.get("areal_proof")
        if proof is None or proof.folder != Path(folder):
            proof = self.areal_proof = Proof(Path(folder))
        return proof.state()  # kept: workers are asked together until the slowest is done

    def areal_load(self, folder: str, clean: bool = False) -> dict[str, Any]:
        """Load a staged folder into the running model; vLLM is paused. `clean` takes NaN out of the cache, too."""
        from vllm.config import set_current_vllm_config

        self.areal_proof = None
        if clean:
            kernels.clean_cache(self.model_runner)
        with set_current_vllm_config(self.model_runner.vllm_config):
            return {"num_tensors": loading.load_folder(self.model_runner, Path(folder))}

    def areal_received(self) -> dict[str, str]:
        """Return name -> fingerprint of what the transfer under way has brought."""
        received: dict[str, str] = self.weight_transfer_engine.received
        return received

    def areal_write_weights(self, path: str) -> dict[str, Any]:
        """Write the weights the next step computes with to a safetensors file, under their Hugging Face names."""
        from safetensors.torch import save_file

        tensors = reading.weights_in_use(self.model_runner)
        save_file(tensors, path)
        return {"num_tensors": len(tensors)}

    def areal_parse_tools(self, parser: str, text: str, tools: list[dict[str, Any]]) -> dict[str, Any]:
        """Read a whole output for tool calls; {"problem": text} if the parser is unknown or unfit for the model."""
        from vllm.tokenizers import cached_tokenizer_from_config

        tokenizer = cached_tokenizer_from_config(self.model_runner.model_config)
        try:
            return tool_calls.parse(tokenizer, parser, text, tools)
        except (KeyError, RuntimeError, ValueError, AttributeError) as error:
            return {"problem": f"{type(error).__name__}: {error}"}

    def areal_sleep(self) -> dict[str, Any]:
        """Give weights and cache back, on the CPU; vLLM is paused. Idempotent."""
        if self.__dict__.get("_areal_freed") is None:
            self._areal_freed = sleeping.sleep(self.model_runner)
        return {}

    def areal_wake(self) -> dict[str, Any]:
        """Take their memory again; weights must be loaded before anything is computed. Idempotent."""
        freed, self._areal_freed = self.__dict__.get("_areal_freed"), None
        if freed is not None:
            sleeping.wake(freed, self.model_runner)
        return {}

    def areal_memory(self) -> dict[str, Any]:
        """Return the bytes this process holds: resident, and on its device where it has one."""
        import torch

        resident = 0
        with contextlib.suppress(OSError):
            resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        kind = self.model_runner.device.type
        device = 0 if kind == "cpu" else getattr(torch, kind).memory_reserved()
        return {"resident": resident, "device": device}
