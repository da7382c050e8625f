"""Real failures of reinforcement-learning systems that the suite guards against, row by row.

Knows: what happened where, and the invariant it broke.
Does not know: which mutants stand for a row; each names its row (`mutants.Mutant.row`).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from attrs import field, frozen


@frozen
class Row:
    """One kind of failure. `seen` are issues of other projects, as `project#number`."""

    invariant: str
    seen: tuple[str, ...] = field(converter=tuple[str, ...])


ROWS: Mapping[str, Row] = MappingProxyType(
    {
        "served-policy-changes": Row(
            "after a step the served policy differs wherever the trainer's does",
            ("verl#7495", "ms-swift#9855", "verl#3821"),
        ),
        "one-destination": Row(
            "every trainable tensor has exactly one destination, ties are resolved, an unknown name is an error",
            ("UniRL#166", "torchtitan#2402", "sglang#9379"),
        ),
        "version-spans": Row(
            "version spans cover every output token, never decrease, and equal the weights that computed each token",
            ("vLLM#54443", "vLLM#48306"),
        ),
        "staleness-bound": Row(
            "the staleness of the oldest token is within the bound for every consumed sample, also after resume",
            ("AReaL#1388", "miles#1697"),
        ),
        "synchronous-at-zero": Row(
            "staleness 0 equals the synchronous trainer bit for bit", ("verl#6780", "SkyRL#579")
        ),
        "failed-is-typed": Row("a failed rollout is typed and excluded from baselines", ("NeMo-RL#3589",)),
        "trained-as-submitted": Row(
            "trained lengths are distributed as the submitted ones", ("tinker-cookbook#822", "NeMo-RL#3599")
        ),
        "exactly-once": Row(
            "killed anywhere, each prompt is trained exactly once; the cursor is the training frontier",
            ("OpenRLHF#1322", "NeMo-RL#3480", "TRL#5863"),
        ),
        "dead-peer": Row(
            "a dead peer gives an attributable error within the deadline",
            ("TRL#6913", "NeMo-RL#3488", "tinker-cookbook#945", "verl#7155"),
        ),
        "one-straggler": Row("one stuck rollout delays at most its own group", ("NeMo-RL#3238",)),
        "control-messages": Row("control messages of two callers never interleave", ("NeMo-RL#2512",)),
        "token-fidelity": Row(
            "trained token ids are the sampled ids, turn by turn", ("verl#6719", "rllm#272", "miles#353")
        ),
        "logprob-gap": Row(
            "the log-prob gap of a pair is within tolerance, whatever the packing, micro-batch or parallelism",
            ("AReaL#1290", "vime#64", "verl#2996"),
        ),
        "no-drift": Row("the gap does not drift with learning rate 0 over many syncs", ("open-instruct#1473",)),
        "expert-replay": Row(
            "replayed experts are the recorded ones for each token; routes that cannot be are refused",
            ("SkyRL#1908", "AReno#524", "Megatron-LM#4168"),
        ),
        "average-is-average": Row("a mean over ranks is the sum divided by the ranks", ("verl#7917",)),
        "sleep-is-real": Row("sleep, wake and pause change behaviour, not only flags", ("vLLM#45585",)),
        "update-chain": Row(
            "an update out of order is refused, and one flipped bit is caught", ("slime delta", "NeMo-RL sparse delta")
        ),
        "shim-moved": Row("a shim whose target moved fails at import", ("NeMo-RL#4155", "prime-rl#2825")),
        "visible-plugin": Row("a broken plugin is a visible, named failure", ("verl __init__.py:74",)),
        "tenants": Row("pausing one replica leaves the others running", ("SkyRL#1647",)),
        "flat-memory": Row("memory and descriptors are flat over 1,000 updates", ("slime#205", "slime#638")),
    }
)
"""Key -> row; every mutant that stands for a real incident names a key."""
