"""A user's own file: one file customises a run, and its mistakes are told with file and line."""

from __future__ import annotations

import importlib
import pickle
from pathlib import Path
from textwrap import dedent

import pytest

from areal_core.contract.errors import ConfigError, ContractMismatch, DuplicateName, ManifestError, UnknownKey
from areal_core.plugins.registry import Listing, Registry

REWARD = """
    from areal_core.plugins.marks import reward

    @reward("ends_well")
    def ends_well(prompt, completion, completion_ids, stop_reason, row):
        "Give one to a full stop."
        return float(completion.endswith("."))
"""


def write(folder: Path, source: str, name: str = "mine.py") -> Path:
    """Write a file and return its path."""
    path = folder / name
    path.write_text(dedent(source))
    return path


def test_a_marked_reward_function_is_built_as_itself(tmp_path: Path) -> None:
    """The name leads to the very function of the file."""
    registry = Registry()

    added = registry.add_file(write(tmp_path, REWARD))
    function = registry.build("reward", "ends_well")

    assert [Listing(role="reward", name="ends_well", origin=str(tmp_path / "mine.py"))] == added
    assert function("", "Well.", [], "stop", {}) == 1.0  # type: ignore[operator]
    assert registry.describe("reward", "ends_well").summary == "Give one to a full stop."
    assert pickle.loads(pickle.dumps(function)) is function


def test_the_six_marks_build_what_they_mark(tmp_path: Path) -> None:
    """Classes are built, with a config if they name one; data sets and estimators are functions."""
    source = """
        from attrs import frozen
        from areal_core.plugins.marks import accept, dataset, estimator, objective, workflow

        @frozen(kw_only=True)
        class Turns:
            max_turns: int = 3

        @workflow("plain")
        class Plain:
            turns = 1

        @workflow("configured", config=Turns)
        class Configured:
            def __init__(self, config):
                self.turns = config.max_turns

        @objective("steady")
        class Steady:
            pass

        @estimator("half")
        def half(batch, rewards):
            return rewards / 2

        @accept("some")
        def some(episodes):
            return len(episodes) > 1

        @estimator("scaled", config=Turns)
        class Scaled:
            def __init__(self, config):
                self.turns = config.max_turns

            def __call__(self, batch, rewards):
                return rewards * self.turns

        @dataset("numbers")
        def numbers(count=2, start=0):
            return [{"n": n} for n in range(start, start + count)]
    """
    registry = Registry()
    registry.add_file(write(tmp_path, source))

    assert registry.build("workflow", "plain").turns == 1  # type: ignore[attr-defined]
    assert registry.build("workflow", "configured", {"max_turns": 5}).turns == 5  # type: ignore[attr-defined]
    assert type(registry.build("objective", "steady")).__name__ == "Steady"
    assert registry.build("accept", "some")([1, 2]) is True  # type: ignore[operator]
    assert registry.build("estimator", "half")(None, 3.0) == 1.5  # type: ignore[operator]
    assert registry.build("estimator", "scaled", {"max_turns": 5})(None, 3.0) == 15.0  # type: ignore[operator]
    assert registry.build("dataset", "numbers", {"start": 4}) == [{"n": 4}, {"n": 5}]
    with pytest.raises(UnknownKey) as caught:
        registry.options("dataset", "numbers", {"cuont": 4}, path="data.options")
    assert (caught.value.what, caught.value.fix) == (
        "unknown key 'data.options.cuont'",
        "did you mean 'count'?",
    )


BACKEND = """
    from attrs import frozen
    from areal_core.plugins.claims import full
    from areal_core.plugins.manifest import Manifest
    from areal_core.plugins.marks import backend

    @frozen(kw_only=True)
    class Options:
        slots: int = 2

    MANIFEST = Manifest(
        role="infer", name="mine", contract={contract}, factory="mine:Engine", claims={claims},
        conformance=f"{{__name__}}:ADAPTER",
    )
    ADAPTER = object()

    @backend(MANIFEST, config=Options)
    class Engine:
        def __init__(self, options):
            self.slots = options.slots
"""


def test_a_file_may_hold_a_whole_backend(tmp_path: Path) -> None:
    """Its manifest is the one it was marked with, its options are checked, and its adapter can be imported."""
    source = BACKEND.format(contract=(1, 0), claims='{"pause.keep": full()}')
    registry = Registry()

    added = registry.add_file(write(tmp_path, source))
    engine = registry.build("infer", "mine", {"slots": 5})

    assert [Listing(role="infer", name="mine", origin=str(tmp_path / "mine.py"))] == added
    assert registry.describe("infer", "mine").claims["pause.keep"].claimed
    assert engine.slots == 5  # type: ignore[attr-defined]
    module, _, name = (registry.describe("infer", "mine").conformance or "").partition(":")
    assert hasattr(importlib.import_module(module), name)
    with pytest.raises(UnknownKey):
        registry.build("infer", "mine", {"slot": 5})


@pytest.mark.parametrize(
    ("contract", "claims", "kind"),
    [
        ("(9, 0)", "{}", ContractMismatch),
        ("(1, 'x')", "{}", ManifestError),
        ("(1, 0)", '{"pause.keep": True}', ManifestError),
    ],
)
def test_a_backend_of_a_file_is_checked_as_an_installed_one(
    tmp_path: Path, contract: str, claims: str, kind: type[Exception]
) -> None:
    """A wrong manifest is refused when the file is read, and the file is named."""
    source = BACKEND.format(contract=contract, claims=claims)

    with pytest.raises(kind, match=r"mine\.py"):
        Registry().add_file(write(tmp_path, source))


def test_marking_registers_nothing_by_itself(tmp_path: Path) -> None:
    """One registry's files are not another's."""
    one, other = Registry(), Registry()
    one.add_file(write(tmp_path, REWARD))

    assert "ends_well" not in other.names("reward")


def test_the_same_file_is_run_once(tmp_path: Path) -> None:
    """Another spelling of the path is the same file, and its second run would raise."""
    path = write(tmp_path, REWARD + "    import os; os.mkdir(__file__ + '.ran')\n")
    registry = Registry()

    first = registry.add_file(path)
    second = registry.add_file(tmp_path / "other" / ".." / "mine.py")

    assert first == second


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    """The error shows what was written and where it was looked for."""
    with pytest.raises(ConfigError) as caught:
        Registry().add_file(tmp_path / "gone.py")

    assert str(tmp_path / "gone.py") in caught.value.what


@pytest.mark.parametrize("name", ["a\0b.py", "x" * 5000, "~nobody-of-that-name/mine.py", "/dev/zero"])
def test_a_name_that_no_file_can_have_is_told_like_one_that_none_has(name: str) -> None:
    """Python has other errors for these."""
    with pytest.raises(ConfigError, match="there is no file"):
        Registry().add_file(name)


@pytest.mark.parametrize(
    ("source", "kind", "line"),
    [
        ("x = 1\n\nraise KeyError('k')\n", "KeyError", 3),
        ("import json\njson.loads('{')\n", "JSONDecodeError", 2),
        ("def f(:\n", "SyntaxError", 1),
        ("import sys\nsys.exit(4)\n", "SystemExit", 2),
    ],
)
def test_a_file_that_raises_is_named_with_the_line(tmp_path: Path, source: str, kind: str, line: int) -> None:
    """The line is the user's own, not that of a library it called."""
    path = write(tmp_path, source)

    with pytest.raises(ConfigError) as caught:
        Registry().add_file(path)

    assert f"imports: {path} raises {kind}" == caught.value.what
    assert caught.value.why.startswith(f"{path}:{line}: ")


def test_a_file_that_marks_nothing_is_an_error(tmp_path: Path) -> None:
    """A forgotten decorator, or one on something imported, is not silence."""
    with pytest.raises(ConfigError) as caught:
        Registry().add_file(write(tmp_path, "def f():\n    return 1\n"))

    assert "defines nothing areal can use" in caught.value.what


def test_a_subclass_does_not_inherit_the_name(tmp_path: Path) -> None:
    """Two classes would otherwise claim one name without anybody writing it twice."""
    source = """
        from areal_core.plugins.marks import workflow

        @workflow("base")
        class Base: ...

        class Derived(Base): ...
    """
    registry = Registry()

    assert [row.name for row in registry.add_file(write(tmp_path, source))] == ["base"]
    assert type(registry.build("workflow", "base")).__name__ == "Base"


def test_two_files_with_one_name_are_both_named(tmp_path: Path) -> None:
    """The second file is refused whole, and the first stays."""
    first, second = (
        write(tmp_path, REWARD),
        write(tmp_path, REWARD.replace("from", "import os\n    from", 1), "other.py"),
    )
    registry = Registry()
    registry.add_file(first)

    with pytest.raises(DuplicateName) as caught:
        registry.add_file(second)

    assert f"by {first} and by {second}" == caught.value.why
    assert str(first) == next(row.origin for row in registry.listings("reward") if row.name == "ends_well")


def test_a_file_may_not_take_an_installed_name(tmp_path: Path) -> None:
    """Shadowing would change a run without a word; nothing of the file is registered."""
    source = REWARD + REWARD.replace("ends_well", "exact_match")
    registry = Registry()

    with pytest.raises(DuplicateName) as caught:
        registry.add_file(write(tmp_path, source))

    assert caught.value.what == "reward 'exact_match' is registered twice"
    assert "areal-tasks" in caught.value.why
    assert "ends_well" not in registry.names("reward")
