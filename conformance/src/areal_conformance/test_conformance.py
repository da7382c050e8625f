"""What `pytest --pyargs areal_conformance` collects: with a backend named, one item a check (`pytest_plugin`)."""

import pytest


def test_conformance() -> None:
    """Skips, and says what to give."""
    pytest.skip("nothing to check: give --areal-backend NAME (and --areal-role ROLE), or --areal-pair TRAIN+INFER")
