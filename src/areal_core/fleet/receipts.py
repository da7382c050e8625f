"""What a replica answered to an update: a receipt of the bytes sent, or an error that names the replica.

Knows: receipts and errors.
Does not know: replicas, or what follows from a wrong answer.
"""

from __future__ import annotations

from areal_core.contract.errors import ArealError, WeightSyncError
from areal_core.contract.weights import Receipt
from areal_core.weights.coverage import compare


def check(sent: Receipt, result: object, replica: str) -> None:
    """Raise what is wrong with one replica's answer, naming the replica."""
    if isinstance(result, Exception):
        raise named(result, replica, sent.version) from result
    if not isinstance(result, Receipt):
        raise WeightSyncError(f"{replica} gave no receipt", why=f"it returned {result!r:.200}")
    compare(sent, result, replica)


def named(error: Exception, replica: str, version: int) -> WeightSyncError:
    """Return the error of one replica as one of the update, naming the replica."""
    if isinstance(error, WeightSyncError):
        return type(error)(f"{replica}: {error.what}", why=error.why, fix=error.fix)
    what = f"{replica} could not take version {version}"
    if isinstance(error, ArealError):
        return WeightSyncError(what, why="\n".join(line for line in (error.what, error.why) if line), fix=error.fix)
    return WeightSyncError(what, why=repr(error))
