"""The words of claims: every ability a backend may have beyond what its role demands.

A manifest answers each word of its role with `full`, `when`, `not_yet` or `unsupported`; a word it
leaves out counts as not claimed. The plan, the conformance suite and the documentation read these words.

Knows: the words, the optional protocol behind one that has methods, and which words a request asks for.
Does not know: who claims them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from attrs import frozen

from areal_core.contract import optional
from areal_core.contract.inference import IMAGES, GenerationRequest, SamplingParams
from areal_core.contract.scheduler import Job, Share


@frozen
class Ability:
    """One word. `protocol` is the optional protocol an engine that claims it satisfies."""

    sentence: str
    protocol: type | None = None


_TRAIN = {
    "parallel.data": Ability("splits a batch over data ranks"),
    "parallel.tensor": Ability("splits layers over tensor ranks"),
    "parallel.pipeline": Ability("splits the stack of layers over pipeline ranks"),
    "parallel.context": Ability("splits a sequence over context ranks"),
    "parallel.expert": Ability("splits experts over expert ranks"),
    "checkpoint.exact": Ability("a loaded state continues bit for bit"),
    "checkpoint.reshard": Ability("a state loads on another number of ranks"),
    "checkpoint.background": Ability("writes a state while the next steps run", optional.SupportsBackgroundState),
    "precision.bfloat16": Ability("computes in bfloat16 over float32 master weights"),
    "precision.float16": Ability("computes in float16 with loss scaling"),
    "memory.offload": Ability("gives its device memory back between steps", optional.SupportsOffload),
    "memory.cpu_offload": Ability("keeps parameters and optimizer in host memory"),
    "memory.activation_checkpointing": Ability("recomputes activations in the backward pass"),
    "head.value": Ability("trains a value head"),
    "packing": Ability("takes packed sequences of any length, none of which attends to another"),
    "lora": Ability("trains a low-rank adapter and sends merged weights"),
    "weights.adapter": Ability("sends its low-rank adapter alone"),
    "images": Ability("trains on sequences with images"),
    "candidates": Ability("tells and trains the log-probs of tokens that were not taken, given or most probable"),
    "experts.replay": Ability("routes tokens to the experts recorded while sampling"),
}
_INFER = {
    "weights.staged": Ability("generates from the old weights while new ones arrive"),
    "weights.in_flight": Ability("changes weights between two tokens of a request"),
    "weights.kv_kept": Ability("keeps cached keys and values of requests in flight across an update"),
    "weights.cast": Ability("accepts weights of another float dtype and casts them"),
    "weights.adapter": Ability("takes an adapter as its new weights, and computes with it beside the base"),
    "pause.keep": Ability("freezes requests in place"),
    "pause.abort": Ability("returns requests with their tokens so far"),
    "sampling.top_p": Ability("nucleus sampling"),
    "sampling.top_k": Ability("top-k sampling"),
    "sampling.min_tokens": Ability("a minimum number of tokens"),
    "sampling.stop_strings": Ability("stops at strings"),
    "sampling.stop_tokens": Ability("stops at given token ids"),
    "sampling.seed": Ability("a seed per request: the same tokens again, whatever else runs"),
    "sampling.seed_continues": Ability("a continued request samples what it would have sampled uninterrupted"),
    "sampling.ignore_eos": Ability("continues past the model's end tokens"),
    "sampling.min_p": Ability("rules out tokens far less probable than the likeliest"),
    "sampling.penalties": Ability("frequency and presence penalties"),
    "sampling.repetition_penalty": Ability("a penalty on what is in prompt or output already"),
    "sampling.structured": Ability("constrains the output to a JSON schema or a regular expression"),
    "deterministic": Ability("the same tokens and log-probs bit for bit, whatever else runs"),
    "parallel.tensor": Ability("one replica over several devices"),
    "parallel.pipeline": Ability("splits a replica's stack of layers over pipeline ranks"),
    "replica.hosts": Ability("one replica over several hosts, a worker process on each"),
    "prefix_cache": Ability("keeps prompts for later requests"),
    "scoring": Ability("reports the log-probs of given tokens", optional.SupportsScoring),
    "memory.sleep": Ability("gives its device memory back", optional.SupportsSleep),
    "tools.parse": Ability("reads tool calls from an output", optional.SupportsToolCalls),
    "lora.adapters": Ability("serves adapters over fixed base weights", optional.SupportsAdapters),
    "experts.trace": Ability("reports which experts computed each token"),
    "images": Ability("takes images"),
    "transport.disk": Ability("receives weights through files"),
    "transport.shm": Ability("receives weights through shared memory"),
    "transport.collective": Ability("receives weights through a process group"),
}
_SCHEDULER = {
    "hosts.one": Ability("keeps all workers of a job on one host"),
    "hosts.spread": Ability("spreads the workers of a job evenly over several hosts"),
    "hosts.named": Ability("places workers on the hosts a job names"),
    "memory": Ability("keeps host memory for every worker, or refuses the job"),
    "image": Ability("runs workers in a container image"),
    "together.host": Ability("places workers on the hosts of another role"),
    "together.devices": Ability("gives workers the devices of another role"),
}

ABILITIES: Mapping[str, Mapping[str, Ability]] = MappingProxyType(
    {
        "train": MappingProxyType(_TRAIN),
        "infer": MappingProxyType(_INFER),
        "scheduler": MappingProxyType(_SCHEDULER),
        "device": MappingProxyType({}),
        "transport": MappingProxyType(
            {
                "streams": Ability(
                    "bytes stream from the sender to all receivers at the same time", optional.SupportsStreaming
                ),
                "across_hosts": Ability("carries weights between workers on different hosts"),
            }
        ),
        "workflow": MappingProxyType(
            {
                "multi_turn": Ability("asks the policy more than once in one episode"),
                "images": Ability("shows the policy the images of a row"),
                "adapters": Ability("asks adapters that are served beside the policy"),
            }
        ),
    }
)
"""Role -> word -> ability."""


def asked_of_sampling(sampling: SamplingParams) -> tuple[str, ...]:
    """Return the words that sampling parameters ask for; one at its neutral value asks for nothing."""
    asked = {
        "sampling.top_p": sampling.top_p < 1,
        "sampling.top_k": sampling.top_k > 0,
        "sampling.min_p": sampling.min_p > 0,
        "sampling.penalties": sampling.frequency_penalty != 0 or sampling.presence_penalty != 0,
        "sampling.repetition_penalty": sampling.repetition_penalty != 1,
        "sampling.min_tokens": sampling.min_new_tokens > 0,
        "sampling.stop_strings": bool(sampling.stop),
        "sampling.stop_tokens": bool(sampling.stop_token_ids),
        "sampling.seed": sampling.seed is not None,
        "sampling.ignore_eos": sampling.ignore_eos,
    }
    return tuple(word for word, is_asked in asked.items() if is_asked)


def asked_of(request: GenerationRequest) -> tuple[str, ...]:
    """Return the words a request asks for: an engine that does not claim one of them refuses it.

    Extras without a word are left out; an engine refuses those too.
    """
    asked = {
        "sampling.structured": request.structure is not None,
        "lora.adapters": bool(request.adapter),
        "images": IMAGES in request.extras,
    }
    return (*asked_of_sampling(request.sampling), *(word for word, is_asked in asked.items() if is_asked))


def asked_of_job(job: Job) -> tuple[str, ...]:
    """Return the words a job asks for: a scheduler that does not claim one of them refuses it."""
    beside = job.together_with
    asked = {
        "hosts.one": job.num_hosts == 1,
        "hosts.spread": job.num_hosts > 1,
        "hosts.named": bool(job.hosts),
        "memory": job.memory > 0,
        "image": job.image is not None,
        "together.host": beside is not None and beside.share is Share.HOST,
        "together.devices": beside is not None and beside.share is Share.DEVICES,
    }
    return tuple(word for word, is_asked in asked.items() if is_asked)
