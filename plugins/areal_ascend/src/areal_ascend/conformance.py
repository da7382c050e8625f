"""What the Ascend engine tells the conformance suite about itself: what the FSDP engine tells, but for the device."""

from __future__ import annotations

from attrs import evolve

from areal_fsdp.conformance import ADAPTER as FSDP

_REFUSED = "heads the kernel does not take are refused; tests of areal-ascend ask for them"
ADAPTER = evolve(
    FSDP,
    patience=3.0,
    no_threshold={
        "areal_ascend.attention:MOST_SEQUENCES": "tests of areal-ascend set it small",
        "areal_ascend.attention:MOST_TOKENS": "as MOST_SEQUENCES",
        "areal_ascend.attention:MOST_HEADS": _REFUSED,
        "areal_ascend.attention:WIDEST_HEAD": _REFUSED,
    },
)
