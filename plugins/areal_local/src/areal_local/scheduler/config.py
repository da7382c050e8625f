"""Settings of the local scheduler."""

from __future__ import annotations

from attrs import field, frozen, validators


@frozen(kw_only=True)
class LocalConfig:
    """Where workers log, and how long they may take.

    Example: LocalConfig(log_dir="runs/demo/logs", heartbeat_timeout_s=8.0)
    """

    log_dir: str = "logs"
    """Folder of one log file per worker, `<role>-<rank>.log`; made when missing."""
    start_timeout_s: float = field(default=600.0, validator=validators.gt(0.0))
    """Until every worker process of a job answers; loading its engine comes later and is not counted."""
    heartbeat_timeout_s: float = field(default=8.0, validator=validators.gt(0.0))
    """Without a sign of life for so long, a worker counts as silent."""
    stop_timeout_s: float = field(default=5.0, validator=validators.ge(0.0))
    """Between asking a worker to end and killing it."""
