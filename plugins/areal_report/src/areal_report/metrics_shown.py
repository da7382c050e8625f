"""Which numbers of a run are drawn, in which order, under which names.

Knows: the names of `metrics.jsonl`. A chart whose numbers were not measured is left out.
Does not know: how a chart is drawn (`charts`), or the page around it (`report`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from attrs import field, frozen

from areal_report.charts import Bars, Chart, Line
from areal_report.curve import Point
from areal_report.history import History
from areal_report.journal import Journal
from areal_report.rates import OF_FLEET, SECONDS, START, STEPS, Record, idle_share, rate, window
from areal_report.summary import evaluation_points, reward_points, smoothed, staleness_counts

_WINDOW = f"over the last {STEPS} steps, at least {SECONDS:g} s"
_OF_SETS = "eval_reward/"
_NO_PARTS = 6
"""Parts of rewards drawn, and evaluation sets; a workflow may have any number."""


@frozen(kw_only=True)
class Shown:
    """A chart on the page. `more` says in a line what it shows or what to look for."""

    title: str
    chart: Chart
    more: str = ""


@frozen(kw_only=True)
class _Metrics:
    """A chart of numbers that are in the records as they are."""

    title: str
    names: Mapping[str, str]
    """Metric by the name it is shown under; the series it is drawn in go through the values of the records."""
    more: str = ""
    percent: bool = False
    zero: bool = False
    band: str = ""
    """Metrics of this name with `_min` and `_max` are drawn behind the first series."""
    unless: frozenset[str] = field(default=frozenset())
    """Not drawn where one of these was measured, which says it better."""


LEARNING = (
    _Metrics(
        title="Entropy",
        names={"entropy": "train/entropy", "surprisal of what was drawn": "train/surprisal"},
        zero=True,
        more="nats per token; towards 0 the policy no longer explores",
    ),
    _Metrics(
        title="Divergence of the policy",
        names={"from what generated": "train/approx_kl_k3", "from the reference": "train/reference_kl"},
        more="KL per token, estimated",
    ),
    _Metrics(
        title="Tokens clipped",
        names={
            "all": "train/clip_fraction",
            "below": "train/clip_fraction_low",
            "above": "train/clip_fraction_high",
        },
        percent=True,
        zero=True,
        more="share whose ratio left the bounds and teaches nothing",
    ),
    _Metrics(
        title="Log-prob gap",
        names={"to what generated": "train/logprob_gap_abs", "trainer to engine, same weights": "train/engine_gap"},
        zero=True,
        more="per token; the second has no staleness in it: what grows there is a fault of the numerics",
    ),
    _Metrics(
        title="Importance weight",
        names={"mean": "train/importance_weight"},
        band="train/importance_weight",
        more="1 where trainer and engine agree",
    ),
    _Metrics(
        title="Effective sample size",
        names={"share of the tokens": "train/effective_sample_size"},
        percent=True,
        zero=True,
    ),
    _Metrics(
        title="Response length",
        names={"mean": "train/response_length"},
        band="train/response_length",
        zero=True,
        more="generated tokens of an episode",
    ),
    _Metrics(
        title="Cut off at the length limit",
        names={"share of the episodes": "train/no_eos_ratio"},
        percent=True,
        zero=True,
    ),
    _Metrics(
        title="Groups without signal",
        names={
            "without signal": "train/groups_without_signal",
            "all solved": "train/groups_all_solved",
            "none solved": "train/groups_none_solved",
        },
        percent=True,
        zero=True,
        more="groups whose members all got the same reward teach nothing",
    ),
    _Metrics(
        title="Groups without signal",
        names={"without signal": "train/zero_advantage_groups"},
        percent=True,
        zero=True,
        more="groups whose members all got the same reward teach nothing",
        unless=frozenset({"train/groups_without_signal"}),
    ),
    _Metrics(title="Variance the critic explains", names={"explained": "train/explained_variance"}),
    _Metrics(title="Loss", names={"loss": "loss"}),
    _Metrics(title="Gradient norm", names={"gradient norm": "grad_norm", "largest": "grad_norm_max"}, zero=True),
)
TIME = (
    _Metrics(
        title="Seconds of a step",
        names={
            "waiting for rollouts": "wait_s",
            "training": "train_s",
            "weight update": "sync_s",
            "devices change hands": "turn_s",
        },
        zero=True,
    ),
    _Metrics(title="Episodes waiting", names={"in flight": "in_flight", "buffered": "buffered"}, zero=True),
)


def reward_chart(history: History, journal: Journal) -> Line:
    """Return the reward of each step, smoothed, and the evaluations."""
    rewards, evaluations = reward_points(history), evaluation_points(history, journal)
    smooth, steps = smoothed(rewards)
    series: dict[str, Sequence[Point]] = {"each step": rewards, f"mean of {steps} steps": smooth}
    if len(rewards) < 2 * steps:
        del series[f"mean of {steps} steps"]
    colours = ("--c0", "--c1") if len(series) == 2 else ("--c1",)
    series["evaluation"] = evaluations
    return Line(series=series, marks=frozenset({"evaluation"}), colours=(*colours, "--c2"), x_label="step")


def learning_charts(history: History) -> list[Shown]:
    """Return what tells whether the policy learns, and how."""
    records = history.records
    found = _charts(LEARNING, records)
    if left_out := _left_out(records):
        chart = Line(series={"left out by rollout.accept": left_out}, zero=True)
        found.append(Shown(title="Groups left out", chart=chart, more="per step; their prompts are used up"))
    if sets := _sets(records):
        shown = Shown(title="Evaluation sets", chart=Line(series=sets, marks=frozenset(sets)), more="mean rewards")
        found.insert(0, shown)
    if parts := _parts(records):
        shown = Shown(title="Parts of the reward", chart=Line(series=parts), more="means over the episodes of a step")
        found.insert(0, shown)
    return found


def staleness_charts(history: History) -> list[Shown]:
    """Return how old the episodes were that were trained on."""
    counts = {str(lag): float(count) for lag, count in staleness_counts(history).items()}
    over_time = {"mean": _of(history.records, "staleness_mean"), "largest": _of(history.records, "staleness_max")}
    return [
        Shown(
            title="Staleness", chart=Bars(counts=counts, x_label="versions behind"), more="of the episodes trained on"
        ),
        Shown(title="Staleness over time", chart=Line(series=over_time, zero=True), more="versions behind"),
    ]


def speed_charts(history: History) -> list[Shown]:
    """Return what was done with the time."""
    records = history.records
    idle = {"training": _shares(records, "train_busy_s"), "inference": _shares(records, "infer_busy_s")}
    tokens = {"generated": _rates(records, "tokens_generated"), "trained": _rates(records, "tokens_trained")}
    return [
        Shown(title="Idle share", chart=Line(series=idle, percent=True, whole=True), more=_WINDOW),
        Shown(title="Tokens per second", chart=Line(series=tokens, zero=True), more=_WINDOW),
        *_charts(TIME, records),
    ]


def _charts(metrics: Sequence[_Metrics], records: Sequence[Record]) -> list[Shown]:
    measured = {name for record in records for name in record}
    found = []
    for each in metrics:
        if each.unless & measured:
            continue
        series = {shown: _of(records, name) for shown, name in each.names.items()}
        first = next(iter(each.names))
        bands = {first: _band(records, each.band)} if each.band else {}
        more = each.more + (", with least and largest" if bands.get(first) else "")
        chart = Line(series=series, bands=bands, percent=each.percent, zero=each.zero)
        found.append(Shown(title=each.title, chart=chart, more=more.removeprefix(", ")))
    return found


def _of(records: Sequence[Record], name: str) -> list[Point]:
    return [(r["step"], r[name]) for r in records if isinstance(r.get(name), int | float)]


def _band(records: Sequence[Record], name: str) -> list[tuple[float, float, float]]:
    low, high = dict(_of(records, f"{name}_min")), dict(_of(records, f"{name}_max"))
    return [(step, low[step], high[step]) for step in low if step in high]


def _left_out(records: Sequence[Record]) -> list[Point]:
    """Return how many groups `rollout.accept` left out per step, nothing if none; the count begins anew on resume."""
    counts = _of(records, "filtered")
    found = list[Point]()
    for (before, earlier), (step, count) in pairwise([(0, 0), *counts]):
        found.append((step, (count - earlier if count >= earlier else count) / max(1, step - before)))
    return found if any(value for _, value in found) else []


def _sets(records: Sequence[Record]) -> dict[str, list[Point]]:
    names = dict.fromkeys(name for record in records for name in record if name.startswith(_OF_SETS))
    return {name.removeprefix(_OF_SETS): _of(records, name) for name in list(names)[:_NO_PARTS]}


def _parts(records: Sequence[Record]) -> dict[str, list[Point]]:
    names = dict.fromkeys(name for record in records for name in record if name.startswith("episode/"))
    chosen = [name for name in names if not name.endswith("_std")][:_NO_PARTS]
    return {name.removeprefix("episode/"): _of(records, name) for name in chosen}


def _rates(records: Sequence[Record], count: str) -> list[Point]:
    found = [
        (records[end]["step"], rate(window(records, end, count), records[end], count)) for end in _read(records, count)
    ]
    return [(step, value) for step, value in found if value is not None]


def _shares(records: Sequence[Record], busy: str) -> list[Point]:
    found = [
        (records[end]["step"], idle_share(window(records, end, busy), records[end], busy))
        for end in _read(records, busy)
    ]
    return [(step, value) for step, value in found if value is not None]


def _read(records: Sequence[Record], count: str) -> list[int]:
    """Return the places of the records at which a count was read anew: between two readings nothing is known."""
    clock = "infer_wall_s" if count in OF_FLEET else "wall_s"
    times = [START.get(clock), *(record.get(clock) for record in records)]
    return [at for at in range(len(records)) if times[at + 1] != times[at] or times[at + 1] is None]
