"""What areal changes in a server, registered through SGLang's own plugin entry point `sglang.srt.plugins`.

SGLang loads it in every process of a server. It does nothing unless AREAL_SGLANG is set, so an environment
with this package installed still starts plain servers.

Knows: which method of SGLang each hook goes to, and how to tell whether all of them are in place.
Does not know: what the hooks do.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

SWITCH = "AREAL_SGLANG"
_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
_REQUEST = "sglang.srt.managers.schedule_batch.Req"
_BATCH = "sglang.srt.managers.schedule_batch.ScheduleBatch"
_INFO = "sglang.srt.sampling.sampling_batch_info.SamplingBatchInfo"


def register() -> None:
    """Register every hook. The entry point."""
    if not os.environ.get(SWITCH):
        return
    from areal_sglang.inside.leftovers import no_named_semaphore

    no_named_semaphore()
    for target, hook in _hooks().items():
        HookRegistry.register(target, hook, HookType.AROUND)


def missing() -> list[str]:
    """Return the targets that carry no hook: SGLang logs a hook that fails and starts without it."""
    return sorted(set(_hooks()) - HookRegistry._patched)


def _hooks() -> Mapping[str, Callable[..., Any]]:  # Any: SGLang's own
    from areal_sglang.inside import counts, ends, leftovers, loading, sampler, scoring, stamps, weights

    return {
        "sglang.srt.layers.sampler.Sampler._sample_from_probs": sampler.drawn,
        f"{_INFO}.from_schedule_batch": sampler.with_streams,
        f"{_REQUEST}._check_token_based_finish": ends.at_token,
        f"{_REQUEST}._check_str_based_finish": ends.at_string,
        f"{_REQUEST}.update_finish_state": counts.generated,
        f"{_BATCH}.prepare_for_extend": counts.prefilled,
        f"{_BATCH}.retract_decode": counts.made_room,
        "sglang.srt.managers.scheduler_components.load_inquirer.SchedulerLoadInquirer.get_loads": counts.told,
        "sglang.srt.sampling.penaltylib.min_new_tokens.BatchedMinNewTokensPenalizer._prepare": ends.until_minimum,
        "sglang.srt.layers.logits_processor.LogitsMetadata.from_forward_batch": scoring.noted,
        "sglang.srt.layers.logprob_processor.InputLogprobProcessor._forward_by_chunk": scoring.at_temperature,
        "sglang.srt.managers.load_snapshot.shm_path_for": leftovers.beside,
        "sglang.srt.managers.tokenizer_manager.SignalHandler.sigterm_handler": leftovers.at_once,
        f"{_SCHEDULER}.record_weight_version_change": stamps.with_pending,
        "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager.check_weights": (
            weights.asked
        ),
        "sglang.srt.model_loader.loader.DefaultModelLoader.load_weights_and_postprocess": loading.watched,
    }
