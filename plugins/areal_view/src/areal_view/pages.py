"""The pages, rendered here; scripts only draw charts and move between tokens.

Knows: what each page shows, and how its query is read.
Does not know: SQL (`areal_episodes`), or how a chart looks (`charts`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query, Response
from fastapi.responses import RedirectResponse

from areal_episodes.reader import Filter, Order, Reader
from areal_episodes.spread import Spread
from areal_view import tokens
from areal_view.data import FIRST, MAX_CHOSEN, SMOOTH
from areal_view.runs import Run
from areal_view.site import MAX_RUNS, Site, whole

PAGE = 25
"""Episodes on one page."""
EXCERPT = 240
MAX_TEXT = 40_000
"""Characters of one turn on a page."""
MAX_MEMBERS = 64
NUM_EVENTS = 30
_LARGEST = 1 << 53


class Pages:
    """The answers with pages."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self.router = APIRouter()
        for path, endpoint in (
            ("/", self.index),
            ("/runs/{run_id}", self.run),
            ("/runs/{run_id}/episodes", self.episodes),
            ("/runs/{run_id}/episodes/{number}", self.episode),
            ("/runs/{run_id}/groups/{index}/{attempt}", self.group),
            ("/runs/{run_id}/distributions", self.distributions),
            ("/runs/{run_id}/timeline", self.timeline),
        ):
            self.router.add_api_route(path, endpoint)

    def index(
        self,
        run: Annotated[list[str] | None, Query()] = None,
        metric: Annotated[list[str] | None, Query()] = None,
        smooth: str = "some",
    ) -> Response:
        """Show the runs there are, and the curves of some of them side by side."""
        runs = self._site.runs.all()
        if len(runs) == 1:
            return RedirectResponse(f"/runs/{runs[0].id}", status_code=303)
        shown = self._site.chosen(run or [])
        places = {each.id: number for number, each in enumerate(shown)}
        states = {each.id: self._site.state(each) for each in shown}
        return self._site.page(
            "index.html",
            root=str(self._site.runs.root),
            runs=runs,
            places=places,
            states=states,
            max_runs=MAX_RUNS,
            **self._curves(shown, metric or [], smooth),
        )

    def run(
        self,
        run_id: str,
        metric: Annotated[list[str] | None, Query()] = None,
        smooth: str = "some",
    ) -> Response:
        """Show one run: how it stands, its curves, what happened."""
        run = self._site.run(run_id)
        state = self._site.state(run)
        return self._site.page(
            "run.html",
            run=run,
            state=state,
            status=state.status(),
            told=state.told(),
            events=state.events(0.0, time.time() + 86_400)[-NUM_EVENTS:][::-1],
            here="curves",
            **self._curves([run], metric or [], smooth),
        )

    def episodes(
        self,
        run_id: str,
        step: str = "",
        task: str = "",
        fate: str = "",
        status: str = "",
        kind: str = "",
        search: str = "",
        order: str = Order.NEWEST.value,
        page: str = "1",
    ) -> Response:
        """Show a page of the episodes that pass a filter."""
        run = self._site.run(run_id)
        if order not in set(Order):
            raise HTTPException(400, f"order must be one of {', '.join(Order)}.")
        number = max(1, whole(page, "page") or 1)
        chosen = Filter(
            step=whole(step, "step"),
            task=task or None,
            fate=fate or None,
            status=status or None,
            kind=kind or None,
            text=search or None,
        )
        with Reader(run.folder) as reader, Spread(run.folder) as spread:
            total = reader.count(chosen)
            rows = [
                {**facts, "excerpts": reader.excerpts(facts["id"], EXCERPT)}
                for facts in reader.facts(chosen, order=Order(order), limit=PAGE, skip=(number - 1) * PAGE)
            ]
            choices = {name: spread.choices(name) for name in ("fate", "reward_status", "kind")}
        asked = {"step": step, "task": task, "fate": fate, "status": status, "kind": kind, "search": search}
        return self._site.page(
            "episodes.html",
            run=run,
            here="episodes",
            rows=rows,
            total=total,
            page=number,
            num_pages=max(1, -(-total // PAGE)),
            asked={**asked, "order": order},
            orders=[each.value for each in Order],
            choices=choices,
        )

    def episode(self, run_id: str, number: int, colour: str = tokens.LOGPROB, first: str = "") -> Response:
        """Show one episode: its turns, and its tokens coloured by a column."""
        run = self._site.run(run_id)
        skipped = whole(first, "first") or 0
        with Reader(run.folder) as reader:
            facts = _known(reader, number)
            row, turns = reader.content(number)
            trajectories = tokens.with_learned(reader.trajectories(number), reader.learned(number))
        decoder = tokens.decoder_of(run.folder)
        columns = list(dict.fromkeys(name for each in trajectories for name in tokens.columns_of(each)))
        if columns and colour not in columns:
            raise HTTPException(400, f"colour must be one of {', '.join(columns)}.")
        shown = [
            tokens.tokens_of(each, colour, decoder, skipped) if colour in tokens.columns_of(each) else []
            for each in trajectories
        ]
        return self._site.page(
            "episode.html",
            run=run,
            here="episodes",
            facts=facts,
            row={str(name): _cut(str(value)) for name, value in row.items()},
            turns=[[{**turn, "text": _cut(turn["text"])} for turn in each] for each in turns],
            shown=shown,
            lengths=[len(each) for each in trajectories],
            columns=columns,
            colour=colour,
            first=skipped,
            step=tokens.MAX_SHOWN,
            decoded=decoder is not None,
        )

    def group(self, run_id: str, index: int, attempt: int) -> Response:
        """Show the members of a group side by side."""
        run = self._site.run(run_id)
        chosen = Filter(group=(min(index, _LARGEST), min(attempt, _LARGEST)), kind="train")
        members = []
        with Reader(run.folder) as reader:
            for facts in reader.facts(chosen, limit=MAX_MEMBERS):
                _, turns = reader.content(facts["id"])
                parts = [{**turn, "text": _cut(turn["text"])} for each in turns for turn in each]
                members.append({**facts, "turns": parts})
        if not members:
            raise HTTPException(404, "There is no such group. The oldest episodes leave when there are too many.")
        members.sort(key=lambda member: member["member"])
        rewards = [member["reward"] for member in members if member["reward"] is not None]
        return self._site.page(
            "group.html",
            run=run,
            here="episodes",
            members=members,
            prompt=members[0]["turns"][0]["text"] if members[0]["turns"] else "",
            rewards=rewards,
            mean=sum(rewards) / len(rewards) if rewards else None,
        )

    def distributions(self, run_id: str, first: str = "", last: str = "") -> Response:
        """Show how long, how old and how good the episodes of some steps were."""
        return self._range("distributions.html", "distributions", run_id, first, last)

    def timeline(self, run_id: str, first: str = "", last: str = "") -> Response:
        """Show what controller, trainer and replicas did in some steps, and what happened meanwhile."""
        return self._range("timeline.html", "timeline", run_id, first, last)

    def _range(self, template: str, here: str, run_id: str, first: str, last: str) -> Response:
        run = self._site.run(run_id)
        state = self._site.state(run)
        asked = {"first": whole(first, "first"), "last": whole(last, "last")}
        return self._site.page(template, run=run, here=here, last_step=state.last_step, asked=asked)

    def _curves(self, shown: Sequence[Run], metrics: Sequence[str], smooth: str) -> dict[str, Any]:
        """Return what the form beside curves needs. Any: values of a template."""
        known = {name for run in shown for name in self._site.state(run).names()}
        others = sorted(known - set(FIRST))
        return {
            "shown": shown,
            "others": others,
            "ticked": [name for name in metrics if name in known][:MAX_CHOSEN],
            "smooth": smooth if smooth in SMOOTH else "some",
            "smooths": list(SMOOTH),
        }


def _known(reader: Reader, number: int) -> Mapping[str, Any]:
    """Return the facts of an episode. Any: as `Reader.facts` gives them."""
    try:
        return reader.one(min(number, _LARGEST))
    except KeyError:
        raise HTTPException(
            404, "There is no such episode. The oldest leave when there are more than `episodes.keep`."
        ) from None


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}\n... {len(text) - MAX_TEXT:,} more characters"
