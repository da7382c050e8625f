"""A mixture has the shares it is told, uses no row more often than it may, and is the same after a resume."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from areal_core.config.load import dump_config, load_config
from areal_core.contract.errors import ArealError, ConfigError, DatasetError, UnknownKey
from areal_core.plugins.registry import Registry
from areal_core.rollout.tasks import TaskSource
from areal_tasks.datasets.mixture import Mixture, MixtureConfig, SetConfig, _at, _Set, mixture


def made(sizes: Sequence[int], weights: Sequence[float], epochs: Sequence[int], size: int = 0) -> Mixture:
    sets = []
    for number, (length, times) in enumerate(zip(sizes, epochs, strict=True)):
        rows = [{"prompt": f"{number}/{row}"} for row in range(length)]
        sets.append(_Set(rows, SetConfig(name=str(number), epochs=times), seed=number))
    return Mixture(sets, lambda _: weights, size)


several = st.lists(st.tuples(st.integers(1, 30), st.floats(0.01, 10.0), st.integers(1, 3)), min_size=1, max_size=5)


@given(several)
def test_every_beginning_has_the_shares_that_the_weights_say(parts: list[tuple[int, float, int]]) -> None:
    """The count of a set is never further from its share than the number of sets; at the end no set lacks a turn."""
    sizes, weights, epochs = zip(*parts, strict=True)
    whole = made(sizes, weights, epochs)
    shares = [weight / sum(weights) for weight in weights]
    seen = [0] * len(sizes)
    for number, row in enumerate(whole, start=1):
        seen[int(row["set"])] += 1
        assert all(abs(count - share * number) < len(sizes) for count, share in zip(seen, shares, strict=True))
    assert any(count == size * times for count, size, times in zip(seen, sizes, epochs, strict=True))


@given(several)
def test_each_epoch_of_a_set_has_every_row_once_and_no_row_comes_more_often_than_it_may(
    parts: list[tuple[int, float, int]],
) -> None:
    """The rows of a set come as permutations of it, one after the other, and not all in one order."""
    sizes, weights, epochs = zip(*parts, strict=True)
    whole = made(sizes, weights, epochs)
    for number, (size, times) in enumerate(zip(sizes, epochs, strict=True)):
        mine = [row["prompt"] for row in whole if row["set"] == str(number)]
        assert max(Counter(mine).values(), default=0) <= times
        for start in range(0, len(mine) - size + 1, size):
            assert len(set(mine[start : start + size])) == size


def test_rows_are_a_function_of_their_number(tmp_path: Path) -> None:
    """Read in any order, from any mixture of the same settings, sliced or not."""
    one, other = made([50, 7], [3, 1], [1, 2]), made([50, 7], [3, 1], [1, 2])

    assert [one[n] for n in reversed(range(len(one)))] == list(other)[::-1]
    assert list(one[5:9]) == [other[n] for n in range(5, 9)]
    assert one[-1] == other[len(other) - 1]
    assert len({tuple(row["prompt"] for row in part) for part in (one[0:7], other[7:14])}) == 2


def test_a_resumed_run_goes_on_with_the_rows_that_would_have_come() -> None:
    """Seed and place are all there is to a mixture's state."""
    straight = TaskSource(made([40, 9], [2, 1], [2, 3]), seed=3)
    expected = [straight.next().row for _ in range(60)]
    first = TaskSource(made([40, 9], [2, 1], [2, 3]), seed=3)
    for _ in range(23):
        first.use(first.next().index)
    again = TaskSource(made([40, 9], [2, 1], [2, 3]), seed=3)
    again.restore(json.loads(json.dumps(first.state())))

    assert [again.next().row for _ in range(37)] == expected[23:]


def test_weights_between_points_lie_on_a_line() -> None:
    """Before the first and after the last they stay."""
    points = [(300, 1.0), (100, 0.0)]

    assert [_at(points, number) for number in (0, 100, 150, 200, 300, 999)] == [0.0, 0.0, 0.25, 0.5, 1.0, 1.0]
    assert _at([(3, 0.5)], 7) == 0.5


def write(path: Path, rows: Sequence[Mapping[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_a_mixture_of_files_and_tasks_is_built_from_a_yaml(tmp_path: Path) -> None:
    """A curriculum in weights, one in order, bounds on length, a user's own set; the same from the dumped yaml."""
    hard = write(tmp_path / "hard.jsonl", [{"prompt": "x" * n, "level": 9 - n} for n in range(1, 9)])
    (tmp_path / "own.py").write_text(
        "from areal_core import dataset\n@dataset('own')\ndef own(n=4):\n"
        "    return [{'prompt': f'o{i}'} for i in range(n)]\n"
    )
    (tmp_path / "run.yaml").write_text(
        f"""
        data:
          name: mixture
          shuffle: false
          options:
            size: 9
            sets:
              - name: reasoning_gym
                options: {{task: chain_sum, size: 50}}
                label: sums
                weight_from: [[0, 1.0], [6, 0.0]]
              - {{name: jsonl, options: {{path: {hard}}}, order_by: level, min_prompt_chars: 3, max_prompt_chars: 6}}
              - {{name: own, epochs: 3}}
        """
    )
    run = load_config(tmp_path / "run.yaml")
    registry = Registry()
    registry.add_file(tmp_path / "own.py")
    rows: Any = registry.build("dataset", run.data.name, run.data.options, "data.options")

    assert len(rows) == 9
    assert rows[0]["set"] == "sums" and "State the final answer" in rows[0]["prompt"]
    assert "sums" not in {row["set"] for row in rows[6:]}
    assert [row["level"] for row in rows if row["set"] == "jsonl"] == [3, 4, 5, 6][: sum("level" in r for r in rows)]
    (tmp_path / "again.yaml").write_text(dump_config(run))
    again: Any = registry.build("dataset", "mixture", load_config(tmp_path / "again.yaml").data.options)
    assert list(again) == list(rows)


@pytest.mark.parametrize(
    ("sets", "kind", "says"),
    [
        ([], ArealError, "sets"),
        ([{"name": "spel"}], ArealError, "spel"),
        ([{"name": "spell", "options": {"sizze": 3}}], UnknownKey, r"data\.options\.sets\[0\]\.options\.sizze"),
        ([{"name": "spell", "weight": -1}], ConfigError, r"the weight of data\.options\.sets\[0\] is -1"),
        ([{"name": "spell", "weight_from": [[0, 0.0]]}], ConfigError, "not always 0"),
        ([{"name": "spell", "epochs": 0}], ArealError, "epochs"),
    ],
)
def test_what_is_wrong_with_a_set_is_told_while_planning(sets: Any, kind: type[ArealError], says: str) -> None:
    """With its place, before any data is read."""
    with pytest.raises(kind, match=says):
        Registry().options("dataset", "mixture", {"sets": sets}, "data.options")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"min_prompt_chars": 99}, "no row of spell has a prompt of the length"),
        ({"order_by": "level"}, "row 0 of spell has no column 'level'"),
        ({"weight_from": ((0, 0.0), (9, 1.0))}, "no set is wanted at its beginning"),
        ({"options": {"size": 300_000}, "order_by": "level"}, "too many to be filtered or ordered"),
    ],
)
def test_what_is_wrong_with_rows_is_told_when_they_are_read(options: dict[str, Any], says: str) -> None:
    """With the set and what to change."""
    config = MixtureConfig(sets=[SetConfig(**{"name": "spell", "options": {"size": 20}, **options})])  # type: ignore[arg-type]

    with pytest.raises(DatasetError, match=says):
        mixture(config)
