"""Where the contract's page says what the checks of this folder look at.

Knows: the anchors of documented methods.
Does not know: any check.
"""

from __future__ import annotations

_PAGE = "scheduler#areal_core.contract.scheduler"
JOB = f"{_PAGE}.Job"
STATUS = f"{_PAGE}.WorkerStatus"
STATE = f"{_PAGE}.WorkerState"
WORKER = f"{_PAGE}.Worker"
CALL = f"{_PAGE}.Worker.call"
SUBMIT = f"{_PAGE}.Scheduler.submit"
POLL = f"{_PAGE}.Scheduler.poll"
CANCEL = f"{_PAGE}.Scheduler.cancel"
CLOSE = f"{_PAGE}.Scheduler.close"
