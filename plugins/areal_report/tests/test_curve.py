"""Curves of characters fit, and say what the points say."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from areal_report.curve import draw_curve, sparkline

FLOATS = st.floats(min_value=-1e9, max_value=1e9) | st.sampled_from([float("nan"), float("inf")])


@given(
    points=st.lists(st.tuples(FLOATS, FLOATS), max_size=30),
    marks=st.lists(st.tuples(FLOATS, FLOATS), max_size=3),
    width=st.integers(1, 100),
    height=st.integers(1, 20),
)
@settings(max_examples=60)
def test_a_curve_fits_its_box(
    points: list[tuple[float, float]], marks: list[tuple[float, float]], width: int, height: int
) -> None:
    """Any points in any box: as many lines as asked for, none too wide."""
    drawn = draw_curve(points, marks=marks, width=width, height=height).splitlines()

    if drawn != ["nothing to draw"]:
        assert len(drawn) == max(2, height) + 2
        assert all(len(line) <= width for line in drawn)


def test_a_rising_curve_rises() -> None:
    """The first point is at the bottom left, the last at the top right, the range is on the axis."""
    drawn = draw_curve([(0, 0.0), (10, 1.0)], marks=[(10, 1.0)], width=30, height=5, title="reward").splitlines()

    assert drawn[0] == "reward"
    assert drawn[1].startswith("  1 │") and drawn[1].endswith("◆")
    assert drawn[5][5] != " " and drawn[5].startswith("  0 │")
    assert drawn[-1].split() == ["0", "step", "10"]


def test_a_sparkline_rises_and_fits() -> None:
    """Oldest first, never wider than asked for, flat and empty series included."""
    assert sparkline(range(8), 8) == "▁▂▃▄▅▆▇█"
    assert sparkline(range(1000), 10)[::9] == "▁█"
    assert len(sparkline(range(1000), 10)) == 10
    assert (sparkline([], 5), sparkline([2.0, 2.0], 5), sparkline([1.0], 0)) == ("", "▁▁", "")
