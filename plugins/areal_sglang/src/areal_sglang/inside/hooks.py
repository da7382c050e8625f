"""What areal changes in a server, registered through SGLang's own plugin entry point `sglang.srt.plugins`.

SGLang loads it in every process of a server. It does nothing unless AREAL_SGLANG is set, so an environment
with this package installed still starts plain servers.

Knows: which method of SGLang each hook goes to.
Does not know: what the hooks do, or whether they are in place (`targets`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from areal_sglang.inside import targets

SWITCH = "AREAL_SGLANG"
_LAYERS = "sglang.srt.layers"
_MANAGERS = "sglang.srt.managers"
_UPDATER = "sglang.srt.model_executor.model_runner_components.weight_updater.WeightUpdater"
_RESULTS = "sglang.srt.managers.scheduler_components.batch_result_processor.SchedulerBatchResultProcessor"
_SAMPLING = "sglang.srt.sampling"
_WEIGHTS = "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager"


def register() -> None:
    """Register every hook. The entry point."""
    if not os.environ.get(SWITCH):
        return
    from areal_sglang.inside.leftovers import no_named_semaphore

    no_named_semaphore()
    for target, hook in _hooks().items():
        HookRegistry.register(target, hook, HookType.AROUND)
        targets.registered.add(target)


def _hooks() -> Mapping[str, Callable[..., Any]]:  # Any: SGLang's own
    from areal_sglang.inside import (
        counts,
        ends,
        experts,
        grammars,
        images,
        leftovers,
        loading,
        penalties,
        receiving,
        refusals,
        sampler,
        scoring,
        sleeping,
        stamps,
        weights,
    )

    return {
        f"{_LAYERS}.logits_processor.LogitsMetadata.from_forward_batch": scoring.noted,
        f"{_LAYERS}.logprob_processor.InputLogprobProcessor._forward_by_chunk": scoring.at_temperature,
        f"{_LAYERS}.sampler.Sampler._sample_from_probs": sampler.drawn,
        f"{_MANAGERS}.load_snapshot.shm_path_for": leftovers.beside,
        f"{_MANAGERS}.mm_schedule.get_embedding_and_mask": images.with_these_weights,
        f"{_MANAGERS}.schedule_batch.release_req": experts.kept,
        f"{_MANAGERS}.schedule_batch.Req._check_str_based_finish": ends.at_string,
        f"{_MANAGERS}.schedule_batch.Req._check_token_based_finish": ends.at_token,
        f"{_MANAGERS}.schedule_batch.Req.update_finish_state": counts.generated,
        f"{_MANAGERS}.schedule_batch.ScheduleBatch.cumulate_penalty_output_tokens": penalties.latest,
        f"{_MANAGERS}.schedule_batch.ScheduleBatch.prepare_for_extend": counts.prefilled,
        f"{_MANAGERS}.schedule_batch.ScheduleBatch.retract_decode": counts.made_room,
        f"{_MANAGERS}.scheduler.Scheduler.pause_generation": counts.paused,
        f"{_MANAGERS}.scheduler.Scheduler.publish_load_snapshot": counts.shown,
        f"{_MANAGERS}.scheduler.Scheduler.record_weight_version_change": stamps.with_pending,
        f"{_MANAGERS}.scheduler.Scheduler.run_batch": penalties.remembered,
        f"{_RESULTS}._maybe_collect_routed_experts": experts.collected,
        f"{_MANAGERS}.scheduler_components.output_streamer.SchedulerOutputStreamer.stream_output": counts.returned,
        f"{_MANAGERS}.scheduler_components.load_inquirer.SchedulerLoadInquirer.get_loads": counts.told,
        f"{_WEIGHTS}.check_weights": weights.asked,
        f"{_WEIGHTS}.release_memory_occupation": sleeping.released,
        f"{_WEIGHTS}.resume_memory_occupation": sleeping.resumed,
        f"{_WEIGHTS}.update_weights_from_tensor": refusals.weights,
        f"{_MANAGERS}.tp_worker.BaseTpWorker.load_lora_adapter_from_tensors": refusals.adapter,
        f"{_MANAGERS}.tokenizer_manager.SignalHandler.sigterm_handler": leftovers.at_once,
        f"{_MANAGERS}.tokenizer_manager.TokenizerManager._tokenize_one_request": images.all_of_them,
        "sglang.srt.constrained.grammar_manager.GrammarManager.get_ready_grammar_requests": grammars.made,
        "sglang.srt.constrained.grammar_manager.GrammarManager.process_req_with_grammar": grammars.found,
        f"{_UPDATER}.begin_weight_update": receiving.begun,
        f"{_UPDATER}.load_weights_from_distributed": receiving.loaded,
        f"{_UPDATER}.receive_weights_from_distributed": receiving.came,
        "sglang.srt.mem_cache.pool_host.common._cuda_host_register": experts.unregistered,
        "sglang.srt.model_loader.loader.DefaultModelLoader.load_weights_and_postprocess": loading.watched,
        "sglang.srt.multimodal.processors.base_processor.BaseMultimodalProcessor.load_mm_data": images.among_tokens,
        f"{_SAMPLING}.penaltylib.frequency_penalty.BatchedFrequencyPenalizer._prepare": penalties.frequency,
        f"{_SAMPLING}.penaltylib.min_new_tokens.BatchedMinNewTokensPenalizer._prepare": ends.until_minimum,
        f"{_SAMPLING}.penaltylib.presence_penalty.BatchedPresencePenalizer._prepare": penalties.presence,
        f"{_SAMPLING}.penaltylib.repetition_penalty.BatchedRepetitionPenalizer._prepare": penalties.repetition,
        f"{_SAMPLING}.sampling_batch_info.SamplingBatchInfo._apply_pre_grammar_logits_transforms": penalties.in_order,
        f"{_SAMPLING}.sampling_batch_info.SamplingBatchInfo.from_schedule_batch": sampler.with_streams,
    }
