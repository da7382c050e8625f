"""What the Ascend engine tells the conformance suite about itself: what the FSDP engine tells, but for the device."""

from __future__ import annotations

from attrs import evolve

from areal_fsdp.conformance import ADAPTER as FSDP

ADAPTER = evolve(FSDP, patience=3.0)
