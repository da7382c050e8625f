"""What the conformance suite must know of the workflows of turns.

Knows: the options with which they run on the suite's tokenizer, whose chat template nobody can read back.
Does not know: any check.
"""

from __future__ import annotations

from areal_conformance.adapter import Adapter

PLAIN = Adapter(options={"": {"renderer": "plain"}})
