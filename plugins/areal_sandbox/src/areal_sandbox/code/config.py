"""Options of the reward `code`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from attrs import Factory, field, frozen, validators

from areal_agentic.sandbox import Limits


@frozen(kw_only=True)
class CodeConfig:
    """Options of `code`.

    Example: CodeConfig(score="all", limits=Limits(timeout_s=4.0), sandbox="podman", image="python:3.12-slim")
    """

    tests: str = "tests"
    """The column with Python test code: a list, each a test, or one text, which is one test."""
    inputs: str = "inputs"
    """The column with standard inputs; read if the row has no tests."""
    outputs: str = "outputs"
    """The column with the standard output that belongs to each input."""
    score: Literal["share", "all"] = "share"
    """The share of tests passed, or 1 if all are and 0 otherwise."""
    each: bool = False
    """Give the result of each test as a part of its own, `test/1`, `test/2`, ...: 1 if it passed, else 0."""
    module: str = field(default="solution", validator=validators.matches_re(r"[A-Za-z]\w*"))
    """The name under which test code can import the program. Its names are there without an import."""
    isolated: bool = True
    """Run the program in another process than the test code, which then cannot be deceived. Tests that reach into the
    program, as those that patch its names, await its coroutines or capture what it prints, need the same one."""
    finished: bool = False
    """Give 0 to completions cut off by the token budget."""
    limits: Limits = Factory(Limits)
    """Of the sandbox; `timeout_s` is for each test."""
    total_s: float = field(default=12.0, validator=validators.gt(0.0))
    """For all tests of a completion; those it does not reach count as timed out. Less than rollout.reward.timeout_s."""
    sandbox: str = "local"
    """The provider of sandboxes."""
    sandbox_options: Mapping[str, Any] = Factory(dict)  # Any: checked against the provider's own config class
    """Its options."""
    image: str = ""
    """A container image with `python3`, for providers that have images."""
