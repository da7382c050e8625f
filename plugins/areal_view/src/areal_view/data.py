"""What charts are drawn of, as JSON: asked for when a page opens and again while a run goes on.

Knows: which metrics come first, and their names for people.
Does not know: how a chart looks (`charts`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query, Response

from areal_episodes.reader import Filter
from areal_episodes.spread import Measure, Spread
from areal_view import charts
from areal_view.series import smoothed
from areal_view.site import Site, answer, printable, whole
from areal_view.state import EVALUATION, RATE, RunState
from areal_view.timeline import timeline

FIRST = {
    "reward": "Reward",
    EVALUATION: "Reward, evaluation",
    "loss": "Loss",
    "train/entropy": "Entropy",
    "train/surprisal": "Surprisal of sampled tokens",
    "train/approx_kl_k3": "KL to the weights that generated (k3)",
    "train/reference_kl": "KL to the reference",
    "train/engine_gap": "Gap between trainer and engine, same weights",
    "staleness_mean": "Staleness, mean",
    "staleness_max": "Staleness, largest",
    "train/response_length": "Response length",
    "train/no_eos_ratio": "Share of episodes without an end",
    f"{RATE}tokens_generated": "Tokens generated per second",
    f"{RATE}tokens_trained": "Tokens trained per second",
    f"{RATE}train_busy_s": "Share of the time the trainer computes",
    f"{RATE}infer_busy_s": "Share of the time replicas compute",
    "grad_norm": "Gradient norm",
    "train/clip_fraction": "Share of clipped ratios",
    "train/groups_without_signal": "Share of groups without signal",
    "train/explained_variance": "Variance the critic explains",
    "wait_s": "Waiting for episodes, s per step",
    "train_s": "Training, s per step",
    "sync_s": "Weight update, s per step",
    "turn_s": "Devices changing hands, s per step",
}
"""Charts of every page of curves, in this order; those a run does not measure are left out."""
SMOOTH = {"none": 0.0, "some": 0.05, "much": 0.2}
"""Share of the points that is averaged."""
MAX_CHOSEN = 24
MEASURES = {
    Measure.LENGTH: "generated tokens",
    Measure.STALENESS: "versions behind",
    Measure.REWARD: "reward",
    Measure.SECONDS: "seconds from prompt to reward",
}


class Data:
    """The answers with data."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self.router = APIRouter(prefix="/data")
        self.router.add_api_route("/curves", self.curves)
        self.router.add_api_route("/runs/{run_id}/distributions", self.distributions)
        self.router.add_api_route("/runs/{run_id}/timeline", self.timeline)

    def curves(
        self,
        run: Annotated[list[str] | None, Query()] = None,
        metric: Annotated[list[str] | None, Query()] = None,
        smooth: str = "some",
    ) -> Response:
        """Return the curves of some runs."""
        if smooth not in SMOOTH:
            raise HTTPException(400, f"smooth must be one of {', '.join(SMOOTH)}.")
        states = [self._site.state(run) for run in self._site.chosen(run or [])]
        names = {state.run.id: printable(state.run.name) for state in states}
        found = []
        for name, title in {**FIRST, **{each: each for each in (metric or [])[:MAX_CHOSEN]}}.items():
            values = [value for state in states for value in _points(state, name, SMOOTH[smooth])]
            if values:
                spec = charts.lines(values, list(names.values()))
                found.append({"name": printable(name), "title": printable(title), "spec": spec})
        facts = [_facts(state) for state in states]
        return answer({"charts": found, "runs": facts, "live": any(fact["live"] for fact in facts)})

    def distributions(self, run_id: str, first: str = "", last: str = "") -> Response:
        """Return histograms of the episodes that some steps were trained on."""
        state = self._site.state(self._site.run(run_id))
        found = []
        with Spread(state.run.folder) as spread:
            steps = whole(first, "first") or 1, whole(last, "last") or spread.last_step()
            for measure, title in MEASURES.items():
                bars = spread.histogram(measure, Filter(steps=steps))
                values = [{"a": bar.low, "b": bar.high, "n": bar.count} for bar in bars]
                if values:
                    spec = charts.bars(values, title, whole=measure in (Measure.LENGTH, Measure.STALENESS))
                    found.append({"name": measure, "title": measure.capitalize(), "spec": spec})
        fact = _facts(state)
        note = f"steps {steps[0]} to {steps[1]}"
        return answer({"charts": found, "runs": [fact], "live": fact["live"], "note": note})

    def timeline(self, run_id: str, first: str = "", last: str = "") -> Response:
        """Return what the parts of a run did in some steps."""
        state = self._site.state(self._site.run(run_id))
        shown = timeline(state, whole(first, "first"), whole(last, "last"))
        zero = state.started or shown.start
        values = [
            {
                "lane": printable(span.lane),
                "doing": span.doing,
                "a": span.start - zero,
                "b": span.end - zero,
                "share": span.share,
                "text": span.text,
                "event": False,
            }
            for span in shown.spans
        ]
        values += [
            {
                "lane": "controller",
                "doing": printable(event.kind),
                "a": event.time - zero,
                "text": printable(event.text),
                "event": True,
            }
            for event in shown.events
        ]
        spec = charts.spans(values, [printable(lane) for lane in shown.lanes])
        fact = _facts(state)
        shares = ", ".join(f"{printable(name)} {share:.0%}" for name, share in shown.shares.items())
        note = f"steps {shown.steps[0]} to {shown.steps[1]}, {shown.end - shown.start:.1f} s: {shares or 'nothing yet'}"
        drawn = [{"name": "timeline", "title": "", "spec": spec}] if shown.spans else []
        return answer({"charts": drawn, "runs": [fact], "live": fact["live"], "note": note})


def _points(state: RunState, metric: str, share: float) -> Iterator[dict[str, Any]]:
    """Yield a metric's points of a run, as `charts.lines` wants them. Any: JSON."""
    points = state.points(metric)
    name = printable(state.run.name)
    for (step, value), (_, mean) in zip(points, smoothed(points, share), strict=True):
        yield {"s": step, "v": value, "m": mean, "r": name}


def _facts(state: RunState) -> dict[str, Any]:
    """Return what a page says of a run beside its charts. Any: JSON."""
    status = state.status()
    told = state.told()
    return {
        "id": state.run.id,
        "status": printable(status),
        "live": status == "running" or not state.caught_up,
        "step": f"{state.last_step:,}",
        "reward": "–",
        told.metric: "–" if told.last is None else f"{told.last:.3g}",
    }
