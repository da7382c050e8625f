"""Runs in every process of a vLLM server that has the plugin installed (entry point `vllm.general_plugins`).

Knows: what has to be known to vLLM before an engine is made.
Does not know: any server of ours; it changes nothing for requests that are not.
"""

from __future__ import annotations

import functools
from typing import Any

from areal_vllm.inside.asked import NUM_PRIOR, TRANSFER, extra


def register() -> None:
    """Make our weight transfer known, and grammars heed prior tokens. Called more than once in a process."""
    from vllm.distributed.weight_transfer import WeightTransferEngineFactory as Factory

    if TRANSFER not in Factory._registry:
        Factory.register_engine(TRANSFER, "areal_vllm.inside.transfer", "GroupWeightTransferEngine")
    _continue_grammars()
    _miss_no_weights()


def _continue_grammars() -> None:
    from vllm.v1.structured_output import StructuredOutputManager as Manager

    original = Manager._create_grammar
    if hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def continued(self: Any, request: Any) -> Any:
        grammar = original(self, request)
        num_prior = extra(request.sampling_params, NUM_PRIOR)
        if num_prior:
            prior = list(request.prompt_token_ids[-num_prior:])
            if not grammar.accept_tokens(request.request_id, prior):
                raise ValueError("the tokens generated before do not fit the structure asked for")
        return grammar

    Manager._create_grammar = continued


def _miss_no_weights() -> None:
    """Refuse a folder that lacks a parameter: vLLM exempts every layer it may pack, and serves what lies in memory."""
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader as Loader

    original = Loader.track_weights_loading
    if hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def strict(self: Any, model: Any, loaded_weights: set[str] | None, quantized: bool = False) -> None:
        if loaded_weights is not None and not quantized:
            missing = {name for name, _ in model.named_parameters()} - loaded_weights
            if missing:
                raise ValueError(f"Following weights were not initialized from checkpoint: {sorted(missing)[:8]}")
        original(self, model, loaded_weights, quantized)

    Loader.track_weights_loading = strict
