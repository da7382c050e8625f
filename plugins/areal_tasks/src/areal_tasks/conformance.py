"""What the conformance suite must know of the shipped workflows.

Knows: the options that switch an ability on.
Does not know: any check.
"""

from __future__ import annotations

from areal_conformance.adapter import Adapter

CRITIQUE = Adapter(options={"adapters": {"adapter": "critic"}})
