"""Trainers that replay recorded routes wrongly: on other tokens, in other layers, with other weights, or not at all.

Knows: where routes pass through the second trainer.
Does not know: checks, beyond the names of those that must find each defect.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import attrs
import torch
from torch import Tensor

from areal_core.contract.batch import Batch
from areal_core.contract.errors import BatchError
from areal_core.contract.train import ROUTED_EXPERTS, Objective, Output, TrainReport
from areal_proof.mutants.rows import Original, before, breaking, gives, put, row, within
from areal_proof.mutants.train_images import OtherNetwork
from areal_proof.mutants.train_parts import without_routes
from areal_proof.second.train import columns as columns_module
from areal_proof.second.train import network as network_module
from areal_proof.second.train.columns import Columns
from areal_proof.second.train.engine import SecondTrainEngine
from areal_proof.second.train.network import Network
from areal_proof.second.train.shown import Shown
from areal_reference.train.engine import ReferenceTrainEngine
from areal_torch import experts as experts_module

ENGINE = "train/second"
breaks_second = breaking(ENGINE, SecondTrainEngine)
Routes = Callable[[Tensor], Tensor | None]


class Rerouting(Network):
    """Routes are changed on their way into the network, padded: [N, L, layers, K]."""

    def hidden(self, ids_NL: Tensor, routes_NLEK: Tensor | None = None, shown: Shown | None = None) -> Tensor:
        """Change the routes first."""
        return Network.hidden(self, ids_NL, self.reroute(routes_NLEK), shown)

    def reroute(self, routes: Tensor | None) -> Tensor | None:
        """Return the routes used."""
        return routes


breaks = breaking(ENGINE, OtherNetwork, part=("Network", Rerouting))
ROWS = breaks.rows(
    row("RoutesDropped", "Loses the recorded routes on the way to the model, which routes freely.",
        "train.experts.recorded", "train.experts.own_row", "train.experts.gradient", incident="SkyRL#1908",
        row="expert-replay", reroute=lambda: None),
    row("RoutesOneTokenLate", "Uses row t for the pass over token t, instead of the pass that token t was drawn from.",
        "train.experts.recorded", "train.experts.own_row", "train.experts.not_recorded", incident="AReno#524",
        row="expert-replay", reroute=lambda routes: None if routes is None else routes.roll(1, 1)),
    row("FirstLayerEverywhere", "Uses the first layer's routes in every layer.", "train.experts.recorded",
        row="expert-replay", reroute=lambda routes: None if routes is None else routes[:, :, :1].expand_as(routes)),
    row("LayersInReverse", "Reads the layers of a row from the last to the first.", "train.experts.recorded",
        row="expert-replay", reroute=lambda routes: None if routes is None else routes.flip(2)),
    row("MinusOneIsTheLast", "Reads -1 as an index from the end: what was not recorded goes to the last experts.",
        "train.experts.not_recorded", row="expert-replay",
        reroute=lambda routes: None if routes is None else torch.where(routes < 0,
            (4 - 1 - torch.arange(routes.shape[-1], device=routes.device)).to(routes.dtype), routes)),
)  # fmt: skip


@breaks("reroute", "train.experts.not_recorded", row="expert-replay")
def OneFreeRowFreesAll(routes: Tensor | None) -> Any:
    """Routes a whole micro-batch freely as soon as one of its rows was not recorded."""
    if routes is None or routes.shape[1] == 1:
        return routes
    free, later = routes[:, 0] < 0, routes[:, 1] >= 0
    return None if bool((free & later).any()) else routes


@breaks("reroute", "train.experts.not_recorded", row="expert-replay")
def LastRoutesAreKept(self: Rerouting, routes: Tensor | None) -> Any:
    """Uses the routes of the batch before where a batch brings none."""
    if routes is not None:
        vars(self)["kept"] = routes.clamp_min(0) * 0 + torch.arange(routes.shape[-1])
        return routes
    return vars(self)["kept"][:1, :1] if "kept" in vars(self) else None


@breaks_second("train_step", "train.experts.gradient", row="expert-replay")
def TrainsOnFreeRoutes(original: Original, self: SecondTrainEngine, batch: Batch, objective: Objective) -> Any:
    """Scores with the recorded routes, and drops them from the batch it trains on."""
    self.running().columns.check(batch, frozenset(), frozenset())
    return original(without_routes(batch), objective)


@attrs.frozen(kw_only=True, eq=False)
class _FromTheTop(Columns):
    whole: list[Tensor] = attrs.Factory(list)

    def check(
        self, batch: Batch, outputs: frozenset[Output], needed: frozenset[str] = frozenset(), *, step: bool = False
    ) -> None:
        """Keep the whole column."""
        Columns.check(self, batch, outputs, needed, step=step)
        self.whole[:] = [batch.tokens[ROUTED_EXPERTS]] if ROUTED_EXPERTS in batch.tokens else []

    def of(self, batch: Batch, outputs: frozenset[Output]) -> dict[str, Tensor]:
        """Take rows from the top."""
        if self.whole:
            batch = batch.with_tokens(**{ROUTED_EXPERTS: self.whole[0][: batch.num_tokens]})
        return Columns.of(self, batch, outputs)


class Replacing(SecondTrainEngine):
    """Runs every call with another function in the place of one of the network's or the columns' own."""

    place: Any = network_module  # Any: a module
    called = "choose"

    def other(self, right: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function used instead."""
        return right

    def _replaced(self) -> AbstractContextManager[None]:
        return put(self.place, **{self.called: self.other(getattr(self.place, self.called))})

    def forward(self, batch: Batch, outputs: frozenset[Output]) -> Batch:
        """Score with the other function."""
        with self._replaced():
            return super().forward(batch, outputs)

    def train_step(self, batch: Batch, objective: Objective) -> TrainReport:
        """Step with the other function."""
        with self._replaced():
            return super().train_step(batch, objective)


breaks_replacing = breaking(ENGINE, Replacing)


@breaks_replacing("other", "train.experts.recorded", "train.experts.row_order", row="expert-replay")
def WeightsOfOtherExperts(right: Callable[..., Any]) -> Any:
    """Sends tokens to the recorded experts, with the weights of those the router would have chosen."""

    def choose(logits: Tensor, per_token: int, normalize: bool, recorded: Tensor | None) -> tuple[Tensor, Tensor]:
        chosen, weights = right(logits, per_token, normalize, None)
        if recorded is not None:
            chosen = torch.where(recorded >= 0, recorded.to(torch.int64), chosen)
        return chosen, weights

    return choose


@breaks_replacing("other", "train.experts.gradient", row="expert-replay")
def RouterNotTrained(right: Callable[..., Any]) -> Any:
    """Takes the weights of recorded experts as constants: the router gets no gradient from them."""

    def choose(logits: Tensor, per_token: int, normalize: bool, recorded: Tensor | None) -> tuple[Tensor, Tensor]:
        chosen, weights = right(logits, per_token, normalize, recorded)
        return chosen, weights if recorded is None else weights.detach()

    return choose


@breaks_replacing("other", "train.experts.recorded", row="expert-replay")
def NotNormalizedInReplay(right: Callable[..., Any]) -> Any:
    """Lets the weights of recorded experts add up to less than one."""

    def choose(logits: Tensor, per_token: int, normalize: bool, recorded: Tensor | None) -> tuple[Tensor, Tensor]:
        result: tuple[Tensor, Tensor] = right(logits, per_token, normalize and recorded is None, recorded)
        return result

    return choose


REPLACING_ROWS = breaks_replacing.rows(
    row("NeverNormalized", "Ignores that this model's expert weights add up to one.", "train.experts.free",
        "train.experts.recorded",
        other=lambda right: lambda logits, per_token, _normalize, recorded: right(logits, per_token, False, recorded)),
)  # fmt: skip


@breaks_replacing("other", "train.experts.refused", incident="Megatron-LM#4168", row="expert-replay",
    place=columns_module, called="check_routes")  # fmt: skip
def TakesRepeatedExperts(right: Callable[..., Any]) -> Any:
    """Takes rows that name one expert twice, the zeros of a buffer never written among them."""

    def check(routes: Tensor, *limits: int) -> None:
        try:
            right(routes, *limits)
        except BatchError as error:
            if "twice" not in error.what:
                raise

    return check


@breaks_replacing("other", "train.experts.refused", row="expert-replay", place=columns_module, called="check_routes",
    forward=lambda original, batch, outputs: original(batch if ROUTED_EXPERTS not in batch.tokens else
        batch.with_tokens(**{ROUTED_EXPERTS: batch.tokens[ROUTED_EXPERTS].clamp(-1, 3)}), outputs))  # fmt: skip
def ClampsExperts(right: Callable[..., Any]) -> Any:
    """Takes the nearest expert where a number is none."""

    def check(routes: Tensor, layers: int, experts: int, per_token: int) -> None:
        right(torch.full_like(routes, -1), layers, experts, per_token)

    return check


def _as_they_are(self: Any, router: Any, inputs: Any, output: tuple[Tensor, Tensor, Tensor]) -> Any:
    """Route as `areal_torch.experts` does, but for routers that do not say whether gates are normalised."""
    logits, own, chosen = output
    if self.routes_TK is None:
        return output
    chosen = self.chosen(chosen)
    weights = logits.softmax(-1, dtype=torch.float32).gather(1, chosen)
    if getattr(router, "norm_topk_prob", False):
        weights = weights / weights.sum(-1, keepdim=True)
    return logits, weights.to(own.dtype), chosen


REFERENCE_ROWS = breaking("train/reference", ReferenceTrainEngine).rows(
    row("GatesAsTheyAre", "Weighs recorded experts by their probabilities as they are in a family that normalises all.",
        "train.experts.families", row="expert-replay",
        start=within(lambda: put(experts_module._RouterHook, route=_as_they_are))),
)  # fmt: skip


SECOND_ROWS = breaks_second.rows(
    row("OtherRanksRouteFreely", "Uses recorded routes on rank 0 only.", "train.experts.ranks", row="expert-replay",
        base=OtherNetwork, part=("Network", Rerouting), ranks=2,
        reroute=lambda self, routes: routes if self.ranks.rank == 0 else None),
    row("FreeWhereAHalfIsIdle",
        "On several ranks, lets the router choose where the recorded routes need one half of the experts only.",
        "train.experts.ranks", row="expert-replay", base=OtherNetwork, part=("Network", Rerouting), ranks=2,
        reroute=lambda self, routes: None if routes is not None and self.ranks.size > 1
            and int(routes[:, :, 0].max()) < 2 else routes),
    row("RowsFromTheTop",
        "Cuts tokens into micro-batches, and takes their routes from the top of the whole column each time.",
        "train.experts.with_tokens", "train.experts.gradient", incident="AReno#524", row="expert-replay",
        build=gives(columns=lambda result, spec: _FromTheTop(network=result.columns.network, spec=spec))),
    row("DenseTakesRoutes", "Drops the routes silently where the model has no experts.", "train.experts.dense",
        row="expert-replay",
        forward=lambda original, self, batch, outputs: original(batch if self.running().architecture.num_experts
            else without_routes(batch), outputs),
        train_step=lambda original, self, batch, objective: original(batch if self.running().architecture.num_experts
            else without_routes(batch), objective)),
    row("RoutesNotReturned", "Gives the batch back without the routes it came with.", "train.experts.kept",
        forward=lambda original, batch, outputs: without_routes(original(batch, outputs))),
    row("RefusesAlone", "Looks at routes before it talks to the other ranks, and raises alone.",
        "train.experts.refused_on_all", row="expert-replay", ranks=2,
        train_step=before(lambda self, batch, objective: self.running().columns.check(batch, objective.outputs,
            objective.columns))),
)  # fmt: skip
