"""What the conformance suite must know of the shipped workflows.

Knows: the options that switch an ability on, and every form of a row.
Does not know: any check.
"""

from __future__ import annotations

from areal_conformance.adapter import Adapter

SINGLE_TURN = Adapter(
    rows=(
        {"prompt": "stone>", "answer": "enots"},
        {"prompt": "abacab>", "answer": "bacaba"},
        {"messages": [{"role": "user", "content": "baobab>"}], "answer": "baboab"},
        {"input_ids": [8, 15, 3, 4, 29], "answer": "bamf"},
    )
)
CRITIQUE = Adapter(options={"adapters": {"adapter": "critic"}})
