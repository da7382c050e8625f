"""The laws a backend is held to, in the numbers every check names.

Knows: the sentences.
Does not know: which checks guard them (`check.Check.law`).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

LAWS: Mapping[int, str] = MappingProxyType(
    {
        0: "A plugin is what its manifest says: found by name, cheap to list, honest about what it claims.",
        1: "A token carries its origin: id, behaviour log-prob, the version whose weights computed it, its mask.",
        2: "The staleness of every consumed episode is bounded, before and after resume; waiting drops nothing.",
        3: "With max_staleness 0 the run is the synchronous trainer, bit for bit.",
        4: "Every prompt is trained exactly once per epoch, across crashes and resume; what is saved comes back.",
        5: "A failed episode is typed and visible; it is never a reward of zero and never silently a rejection.",
        6: "Loss is a sum over a global normaliser: no gradient depends on packing, micro-batches or ranks.",
        7: "A weight update is all or nothing: one destination a tensor, both sides agree, it flips at commit.",
        8: "What a backend does not claim it refuses, with the reason.",
        9: "Every wait has a deadline and an owner; a dead peer gives an error that names it. Nothing hangs.",
        10: "close and cancel are idempotent and leave no process, port, segment, socket or file behind.",
        11: "Nothing is unpickled, servers bind to loopback, every remote call is authenticated.",
    }
)
"""Number -> sentence. 1 to 11 are the laws of the design; 0 is what every plugin owes before any of them."""
