"""What stands under `options:` of kind `distill`.

Knows: names and ranges.
Does not know: what cannot go together (`distill`).
"""

from __future__ import annotations

from attrs import field, frozen, validators

from areal_core.config.schema import RoleConfig
from areal_supervised.scorer import ScorerConfig
from areal_supervised.served_teacher import ServedTeacherConfig


@frozen(kw_only=True)
class DistillConfig:
    """Options of kind `distill`."""

    teacher: RoleConfig | None = None
    """Who is learned from, as a training role: {path: /models/teacher, backend: fsdp:d2}. Of the student's tokens."""
    served: ServedTeacherConfig | None = None
    """Who is learned from in place of `teacher`: {url: "http://127.0.0.1:8000/v1", model: Qwen/Qwen3-8B}."""
    scorer: ScorerConfig | None = None
    """Who is learned from, as an inference engine of this run: {path: /models/teacher, backend: vllm:d1}."""
    discount: float = field(default=0.0, validator=[validators.ge(0.0), validators.le(1.0)])
    """How much the KL of later tokens counts for a token: 0 its own alone, 1 in full, which is the KL of answers."""
    top_k: int = field(default=0, validator=validators.ge(0))
    """Take the KL over so many of the teacher's most probable tokens at each place, and the rest of them as one; 0:
    judge the token that was drawn. Both engines must claim `candidates`, a server must name tokens by id."""
