"""Checks of a train engine's life: what they say does not hang on what ran in the process before."""

from __future__ import annotations

import gc
import socket

import pytest

from areal_conformance.checks import all_checks
from areal_conformance.outcome import Outcome
from areal_conformance.session import Session
from areal_conformance.target import Locator, locate


class Cycle:
    """Listening sockets that only the garbage collector can close."""

    def __init__(self, number: int) -> None:
        """Open them, and keep itself alive."""
        self.me = self
        self.sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.slow
def test_what_others_left_does_not_hide_a_port_that_an_engine_left_open() -> None:
    """Garbage of earlier checks is collected while this one counts, and is not set against the engine's own."""
    session = Session(locate(Locator(role="train", name="reference", ranks=1, mutant="ListenerLeftOpen")))
    gc.disable()  # at no moment but those the check chooses
    Cycle(8)

    try:
        result = session.run(all_checks()["train.close.lets_go"])
    finally:
        gc.enable()
        session.close()
        gc.collect()  # the mutant's own ports

    assert result.outcome is Outcome.FAIL, result.message
