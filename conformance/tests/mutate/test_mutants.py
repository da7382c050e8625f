"""Keys, samples and the line that is shown."""

from __future__ import annotations

from pathlib import Path

from areal_conformance.mutate.cover import Coverage, Made, watched_lines
from areal_conformance.mutate.mutants import Mutant, diff, mutants_of, sampled
from areal_conformance.mutate.source import Source

TEXT = """\
ROOM = 1024


class Engine:
    def pause(self, left, mode=3):
        if left < 1:
            self.go(left + 1)
        return [one for one in left
                if one > 2]
"""


def source_of(text: str = TEXT) -> Source:
    return Source(name="areal_mine.core", path=Path("/x/areal_mine/core.py"), text=text.encode())


def one(source: Source, operator: str, before: str) -> Mutant:
    keys = {(mutant.key.operator, mutant.key.before): mutant for mutant in mutants_of(source)}
    return keys[operator, before]


def test_a_key_outlives_an_edit_elsewhere() -> None:
    """Lines above move a mutant and leave its key."""
    moved = source_of("import os\n\n" + TEXT)
    old, new = one(source_of(), "boundary", "left < 1"), one(moved, "boundary", "left < 1")

    assert (old.key, old.line + 2) == (new.key, new.line)
    assert (old.key.path, old.key.function) == ("areal_mine/core.py", "Engine.pause")


def test_mutants_that_say_the_same_are_told_apart() -> None:
    """Two places alike in all their words have two keys."""
    twice = source_of("def f(a, b):\n    g(a < b)\n    h(a < b)\n")
    keys = [mutant.key for mutant in mutants_of(twice) if mutant.key.operator == "boundary"]

    assert [key.occurrence for key in keys] == [1, 2]


def test_the_same_seed_draws_the_same_sample() -> None:
    """A sample is part of a larger one, another seed draws another, and an edit elsewhere changes nothing."""
    mutants = mutants_of(source_of())
    moved = mutants_of(source_of("import os\n\n" + TEXT))

    def drawn(of: list[Mutant], number: int | None, seed: int) -> list[object]:
        return [mutant.key for mutant in sampled(of, number, seed)]

    assert drawn(mutants, 5, 1) == drawn(list(reversed(mutants)), 5, 1) == drawn(mutants, 8, 1)[:5]
    assert drawn(mutants, 5, 1) == drawn(moved, 5, 1)
    assert drawn(mutants, None, 1) != drawn(mutants, None, 2)
    assert len(drawn(mutants, None, 1)) == len(mutants)


def test_the_line_that_differs_is_shown() -> None:
    """One line before and after, without its indentation."""
    source = source_of()

    assert diff(source, one(source, "boundary", "left < 1")) == ("if left < 1:", "if left <= 1:")


def test_checks_that_look_at_a_mutant() -> None:
    """Those that run its statement; a default belongs to its function, a constant to its module."""
    source = source_of()
    assert watched_lines(source, one(source, "boundary", "left < 1")) == {6}
    assert watched_lines(source, one(source, "boundary", "one > 2")) == {8, 9}
    assert watched_lines(source, one(source, "default", "3")) == {6, 7, 8, 9}
    assert watched_lines(source, one(source, "constant", "1024")) == {6, 7, 8, 9}


def test_the_cheapest_check_comes_first() -> None:
    """Only checks that run the line are asked, in the order of their seconds."""
    source = source_of()
    coverage = Coverage()
    for name, seconds, lines in (("slow", 3.0, {6, 7}), ("quick", 0.1, {6}), ("elsewhere", 0.0, {8})):
        coverage.made[name] = Made(check=name, outcome="pass", seconds=seconds)
        coverage.lines[name] = {source.path: lines}
    seen = one(source, "boundary", "left < 1")

    assert coverage.checks_at(source, seen) == ("quick", "slow")
    assert coverage.checks_at(source, one(source, "arithmetic", "left + 1")) == ("slow",)

    coverage.drop(Made(check="quick", outcome="fail", seconds=0.0))
    assert coverage.checks_at(source, seen) == ("slow",)


def test_what_runs_at_import_alone_is_looked_at_by_whoever_imports_it() -> None:
    """A field of settings, a constant of a module whose functions no check runs; a line in a function is not."""
    source = source_of("from attrs import frozen\n\nROOM = 1024\n\n@frozen\nclass Options:\n    slots: int = 4\n")
    coverage = Coverage()
    for name, seconds, path in (("slow", 3.0, source.path), ("quick", 0.1, source.path), ("other", 0.0, Path("/x"))):
        coverage.made[name] = Made(check=name, outcome="pass", seconds=seconds)
        coverage.lines[name] = {path: {1, 3, 5, 6, 7}}

    assert coverage.checks_at(source, one(source, "default", "4")) == ("quick", "slow")
    assert coverage.checks_at(source, one(source, "constant", "1024")) == ("quick", "slow")
    coverage.in_memory = {source.path}
    assert coverage.checks_at(source, one(source, "constant", "1024")) == ("other", "quick", "slow")

    source = source_of()
    coverage.in_memory = set()
    coverage.lines = {"slow": {source.path: {1, 4, 5}}, "quick": {source.path: {1, 4, 5, 8}}}
    assert coverage.checks_at(source, one(source, "constant", "1024")) == ("quick",)
    coverage.drop(Made(check="quick", outcome="fail", seconds=0.0))
    assert coverage.checks_at(source, one(source, "constant", "1024")) == ("slow",)
    assert coverage.checks_at(source, one(source, "default", "3")) == ("slow",)
    assert coverage.checks_at(source, one(source, "boundary", "left < 1")) == ()


def test_a_function_called_at_import_alone_is_looked_at_by_whoever_imports_it() -> None:
    """A table that a function makes while its module is imported: every check runs with it; a helper of nobody's is
    unseen."""
    source = source_of("def row(n):\n    return n + 1\n\ndef odd(n):\n    return n - 1\n\nTABLE = [row(1), 2]\n")
    coverage = Coverage(in_memory={source.path})
    coverage.made["a"] = Made(check="a", outcome="pass", seconds=1.0)
    coverage.lines["a"] = {Path("/x"): {1}}

    assert coverage.checks_at(source, one(source, "arithmetic", "n + 1")) == ("a",)
    assert coverage.checks_at(source, one(source, "arithmetic", "n - 1")) == ()
    assert coverage.unrun(source) == (5,)


def test_statements_no_check_runs() -> None:
    """First lines of statements in functions, of several lines too; neither texts nor what is outside of functions."""
    source = source_of(TEXT.replace("        if left < 1:", '        """Stop."""\n        if left < 1:'))
    coverage = Coverage()
    assert coverage.unrun(source) == (7, 8, 9)

    coverage.lines["a"] = {source.path: {7, 10}}
    assert coverage.unrun(source) == (8,)
