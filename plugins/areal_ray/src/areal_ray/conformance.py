"""What the suite needs to know about this scheduler. Imported by the suite only."""

from __future__ import annotations

import os

from areal_conformance.adapter import Adapter

ADAPTER = Adapter(
    options={"": {"address": os.environ.get("RAY_ADDRESS", "local")}},
    anchors=("ray._private.ray_constants:ENABLE_RAY_CLUSTER",),
    patience=2.0,
)
"""Ray itself takes three seconds to start, and one for each worker's relay."""
