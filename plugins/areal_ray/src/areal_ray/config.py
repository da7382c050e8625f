"""Settings of the scheduler `ray`."""

from __future__ import annotations

from attrs import field, frozen, validators


@frozen(kw_only=True)
class RayConfig:
    """Which Ray workers run on, and how long they may take.

    Example: RayConfig(address="10.0.0.1:6379", log_dir="runs/demo/logs", heartbeat_timeout_s=8.0)
    """

    address: str = ""
    """`HOST:PORT` of the cluster to join. Empty joins the one that RAY_ADDRESS names or that runs on this machine, and
    starts one here, for this run alone, if there is none; `local` always starts one."""
    wait_for_machines_s: float = field(default=0.0, validator=validators.ge(0.0))
    """How long a job that no machine of the cluster could ever hold waits for others to join, as where one grows by
    itself. 0 refuses it at once."""
    room_timeout_s: float = field(default=10.0, validator=validators.ge(0.0))
    """How long a job waits for what others of the cluster hold now."""
    log_dir: str = "logs"
    """Folder of one log file per worker, `<role>-<rank>.log`, on the controller's machine; made when missing."""
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
