"""Settings of the local scheduler."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Any

from attrs import field, frozen, validators


def _one_address(_instance: object, _attribute: Any, value: str) -> None:  # Any: attrs's own
    try:
        everywhere = ip_address(value).is_unspecified
    except ValueError:
        raise ValueError(f"host is {value!r}, which is no IP address; name one of this machine") from None
    if everywhere:
        raise ValueError(
            f"host is {value}, which is every address of the machine, but workers need one; name one, "
            "and set listen_on_all to listen on every interface"
        )


@frozen(kw_only=True)
class LocalConfig:
    """Where workers log, and how long they may take.

    Example: LocalConfig(log_dir="runs/demo/logs", heartbeat_timeout_s=8.0)
    """

    host: str = field(default="127.0.0.1", validator=_one_address)
    """IP address of this machine that workers listen on and are reached at; collectives keep to its interface."""
    listen_on_all: bool = False
    """Listen on every interface instead, and be reached at `host`. Whoever connects still needs the run's key."""
    log_dir: str = "logs"
    """Folder of one log file per worker, `<role>-<rank>.log`; made when missing."""
    start_timeout_s: float = field(default=600.0, validator=validators.gt(0.0))
    """Until every worker process of a job answers; loading its engine comes later and is not counted."""
    heartbeat_timeout_s: float = field(default=8.0, validator=validators.gt(0.0))
    """Without a sign of life for so long, a worker counts as silent."""
    progress_timeout_s: float = field(default=3600.0, validator=validators.ge(0.0))
    """No worker answers a call for so long: the run does not move. 0 waits for ever where no call has a deadline."""
    stalled: str = field(default="restart", validator=validators.in_(("restart", "end")))
    """What becomes of a run that does not move: it starts again, `scheduler.restarts` times, or it ends."""
    stop_timeout_s: float = field(default=5.0, validator=validators.ge(0.0))
    """Between asking a worker to end and killing it."""
