"""The pytest plugin: options, and nothing else unless a backend is named.

    pytest --pyargs areal_conformance --areal-backend fsdp --areal-role train

Every pytest run on a machine with this suite imports this module, so it imports nothing heavy.

Knows: the options. Does not know: what is done with them (`pytest_plugin`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

TARGETS = ("areal_backend", "areal_pair", "areal_mutant")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options, all of them namespaced: two plugins with one option would break every run of the host."""
    group = parser.getgroup("areal conformance")
    group.addoption("--areal-backend", metavar="NAME", default="", help="check this backend")
    group.addoption("--areal-role", metavar="ROLE", default="", help="role, if the name has several")
    group.addoption("--areal-pair", metavar="TRAIN+INFER", default="", help="check a pair")
    group.addoption("--areal-mutant", metavar="NAME", default="", help="run on a deliberately broken backend")
    group.addoption("--areal-device", metavar="KIND", default="cpu", help="cpu (default), cuda, ...")
    group.addoption("--areal-ranks", metavar="N", type=int, default=0, help="ranks at most (default 1)")
    group.addoption("--areal-level", metavar="N", type=int, default=4, help="levels up to this (default 4)")
    group.addoption("--areal-report", metavar="DIR", default="", help="write report.json, .md, .html, badge.svg there")
    group.addoption("--areal-import", metavar="FILE", action="append", default=[], help="import this file first")
    group.addoption("--areal-ledger", metavar="FILE", default="", help="known failures, instead of the plugin's own")
    group.addoption("--areal-bounds", metavar="FILE", default="", help="bounds of figures, instead of the plugin's own")
    group.addoption("--areal-check", metavar="ID", action="append", default=[], help="only this; * for any part")
    group.addoption("--areal-only-failed", metavar="REPORT", default="", help="only what failed in this report")
    group.addoption("--areal-patience", metavar="FACTOR", type=float, default=1.0, help="multiply every deadline")
    group.addoption("--areal-contract", metavar="X.Y", default="", help="only rules of this version of the contract")
    group.addoption("--areal-zoo", metavar="N", type=int, default=0, help="models drawn of each family (default a few)")
    # How `areal conformance run` follows the run in its child processes, and the command it was given.
    group.addoption("--areal-jobs", metavar="N", type=int, default=0, help="of `areal conformance run --jobs`")
    group.addoption(
        "--areal-claims", metavar="DIR", default="", help="make no check that another process has claimed there"
    )
    group.addoption("--areal-journal", metavar="FILE", default="", help="write progress there, one line at a time")
    group.addoption("--areal-command", metavar="TEXT", default="", help="the command to show in the report")


def pytest_configure(config: pytest.Config) -> None:
    """Prepare the run if a target is named."""
    if any(config.getoption(name, "") for name in TARGETS):
        from areal_conformance.pytest_plugin import start_run

        start_run(config)
