"""The second inference engine, under a name of its own: a real engine whose replicas may be on several hosts.

Knows: its manifest.
Does not know: hosts (`namespaces`).
"""

from __future__ import annotations

import attrs

from areal_core.plugins.claims import full
from areal_core.plugins.marks import backend
from areal_proof.second.infer.config import SecondInferenceConfig
from areal_proof.second.infer.engine import SecondInferenceEngine
from areal_proof.second.manifest import INFER

MANIFEST = attrs.evolve(
    INFER,
    name="spanning",
    factory="spanning:SpanningEngine",
    config="",
    conformance="",
    claims={**INFER.claims, "transport.collective": full()},
)


@backend(MANIFEST, config=SecondInferenceConfig)
class SpanningEngine(SecondInferenceEngine):
    """Takes whatever tensors come, so also those of a process group."""
