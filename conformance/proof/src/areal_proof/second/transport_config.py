"""Options of the second transport. Plain data, read without torch."""

from __future__ import annotations

from attrs import field, frozen, validators


@frozen(kw_only=True)
class SecondTransportConfig:
    """How many bytes a bucket should have."""

    bucket_bytes: int = field(default=1 << 20, validator=validators.ge(1))
