"""Options of the providers `e2b` and `daytona`. Keys come from the environment and stand in no file."""

from __future__ import annotations

from attrs import field, frozen, validators

_POSITIVE = validators.gt(0.0)


@frozen(kw_only=True)
class E2BConfig:
    """Options of `e2b`. The key is read from E2B_API_KEY, another service than E2B's own from E2B_DOMAIN.

    Example: E2BConfig(template="my-template", lifetime_s=900)
    """

    template: str = field(default="base", validator=validators.min_len(1))
    """What machines are made of where nobody names an image."""
    lifetime_s: int = field(default=3600, validator=validators.ge(1))
    """After which a machine ends, whatever became of the run."""
    start_timeout_s: float = field(default=60.0, validator=_POSITIVE)
    """For a machine to be there."""


@frozen(kw_only=True)
class DaytonaConfig:
    """Options of `daytona`. The key is read from DAYTONA_API_KEY, another service than Daytona's from DAYTONA_API_URL.

    Example: DaytonaConfig(snapshot="my-snapshot", idle_s=600)
    """

    snapshot: str = ""
    """What machines are made of where nobody names an image; empty for Daytona's default."""
    idle_s: int = field(default=900, validator=validators.ge(60))
    """Without a request, after which a machine ends, whatever became of the run; in whole minutes."""
    start_timeout_s: float = field(default=60.0, validator=_POSITIVE)
    """For a machine to be there; an image is built first."""
