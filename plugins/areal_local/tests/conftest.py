"""Running `areal` as a process, with distributions of the test's own on its path; transports of every kind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.benches.command import Run, areal_command

from areal_core.contract.weights import WeightTransport
from areal_local.transports.collective import CollectiveTransport
from areal_local.transports.config import CollectiveConfig, DiskConfig, ShmConfig
from areal_local.transports.disk import DiskTransport
from areal_local.transports.shm import ShmTransport

from .streams import Ends
from .transfers import KINDS, Make


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Return a folder that is on the path of the processes `areal` starts."""
    folder = tmp_path / "site"
    folder.mkdir()
    return folder


@pytest.fixture
def areal(site: Path, tmp_path: Path) -> Run:
    """Return a function that runs `areal WORDS...` in an empty folder."""
    return areal_command(site, tmp_path)


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    """Build transports of one kind whose files, if any, lie under `tmp_path`."""
    made: list[WeightTransport] = []

    def build(bucket_bytes: int = 1000) -> WeightTransport:
        if request.param == "disk":
            made.append(DiskTransport(DiskConfig(root=str(tmp_path), bucket_bytes=bucket_bytes)))
        else:
            config = ShmConfig(backing=request.param, folder=str(tmp_path), bucket_bytes=bucket_bytes)
            made.append(ShmTransport(config))
        return made[-1]

    yield build
    for transport in made:
        transport.close()
    assert list(tmp_path.iterdir()) == [], "a transport left something behind"


@pytest.fixture
def end() -> Iterator[Ends]:
    """Make ends of the transport; all are closed after the test."""
    made: list[CollectiveTransport] = []

    def make() -> CollectiveTransport:
        made.append(CollectiveTransport(CollectiveConfig(bucket_bytes=1000, timeout_s=20.0)))
        return made[-1]

    yield make
    for transport in made:
        transport.close()
