"""What happens to the fleet, in the journal and in words for whoever watches.

Knows: the fleet's events and their fields.
Does not know: why they happen (`elastic`).
"""

from __future__ import annotations

from typing import Any, Protocol

from areal_core.observe.events import EventLog


class Notes(Protocol):
    """The part of a view that shows a line."""

    def note(self, text: str) -> None:
        """Show one line that is not a step."""


class FleetNews:
    """Takes the events of `ElasticFleet`."""

    def __init__(self, events: EventLog, view: Notes) -> None:
        self._events, self._view = events, view

    def tell(self, kind: str, **fields: Any) -> None:
        """Write one event and show it. Any: plain data."""
        self._events.write(kind, **fields)
        self._view.note(_words(kind, fields))


def _words(kind: str, fields: dict[str, Any]) -> str:
    worker = fields["worker"]
    if kind == "replica_lost":
        then = "a replacement is starting" if fields["replaced"] else "it is not replaced"
        return f"replica {worker} is out of service, {then}: {fields['error']}"
    if kind == "replica_joined":
        return f"replica {worker} serves from version {fields['version']} on; {fields['replicas']} serving"
    return f"replica {worker} left; {fields['replicas']} serving"
