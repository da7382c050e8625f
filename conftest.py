"""What every test of this repository runs under."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("areal", deadline=None)  # a test states what is right, never how long it may take
settings.load_profile("areal")
