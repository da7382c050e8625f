"""Trainers that replay recorded routes wrongly: on other tokens, in other layers, with other weights, or not at all.

Knows: where routes pass through the second trainer.
Does not know: checks, beyond the names of those that must find each sin.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import torch
from torch import Tensor

from areal_core.contract.batch import Batch
from areal_core.contract.errors import BatchError
from areal_core.contract.train import ROUTED_EXPERTS, Objective, Output, TrainReport, TrainSpec
from areal_proof.mutants import mutant
from areal_proof.second.train import columns as columns_module
from areal_proof.second.train import network as network_module
from areal_proof.second.train.columns import Columns
from areal_proof.second.train.engine import SecondTrainEngine, Started
from areal_proof.second.train.network import Network
from areal_proof.second.train.ranks import Ranks
from areal_proof.second.train.shown import Shown

ENGINE = "train/second"
Routes = Callable[[Tensor], Tensor | None]


class Routed(SecondTrainEngine):
    """Routes are changed on their way into the network, padded: [N, L, layers, K]."""

    def _build(self, spec: TrainSpec, ranks: Ranks, device: torch.device, dtype: torch.dtype) -> Started:
        here = super()._build(spec, ranks, device, dtype)
        self.ranks = ranks
        whole = here.columns.network
        fields = {field.name: getattr(whole, field.name) for field in attrs.fields(Network)}
        network = _Rerouted(**fields, reroute=self.reroute)
        return attrs.evolve(here, columns=attrs.evolve(here.columns, network=network))

    def reroute(self, routes: Tensor | None) -> Tensor | None:
        """Return the routes used."""
        return routes


@attrs.frozen(kw_only=True, eq=False)
class _Rerouted(Network):
    reroute: Callable[[Tensor | None], Tensor | None]

    def hidden(self, ids_NL: Tensor, routes_NLEK: Tensor | None = None, shown: Shown | None = None) -> Tensor:
        """Change the routes first."""
        return Network.hidden(self, ids_NL, self.reroute(routes_NLEK), shown)


@mutant(
    ENGINE,
    killers=("train.experts.recorded", "train.experts.own_row", "train.experts.gradient"),
    incident="SkyRL#1908",
    row="expert-replay",
)
class RoutesDropped(Routed):
    """Loses the recorded routes on the way to the model, which routes freely."""

    def reroute(self, routes: Tensor | None) -> Tensor | None:
        """Forget them."""
        return None


@mutant(
    ENGINE,
    killers=("train.experts.recorded", "train.experts.own_row", "train.experts.not_recorded"),
    incident="AReno#524",
    row="expert-replay",
)
class RoutesOneTokenLate(Routed):
    """Uses row t for the pass over token t, instead of the pass that token t was drawn from."""

    def reroute(self, routes: Tensor | None) -> Tensor | None:
        """Shift by one."""
        return None if routes is None else routes.roll(1, 1)


@mutant(ENGINE, killers=("train.experts.recorded",), row="expert-replay")
class FirstLayerEverywhere(Routed):
    """Uses the first layer's routes in every layer."""

    def reroute(self, routes: Tensor | None) -> Tensor | None:
        """Copy the first layer."""
        return None if routes is None else routes[:, :, :1].expand_as(routes)


@mutant(ENGINE, killers=("train.experts.recorded",), row="expert-replay")
class LayersInReverse(Routed):
    """Reads the layers of a row from the last to the first."""

    def reroute(self, routes: Tensor | None) -> Tensor | None:
        """Turn them round."""
        return None if routes is None else routes.flip(2)


@mutant(ENGINE, killers=("train.experts.not_recorded",), row="expert-replay")
class MinusOneIsTheLast(Routed):
    """Reads -1 as an index from the end: what was not recorded goes to the last experts."""

    def reroute(self, routes: Tensor | None) -> Tensor | None:
        """Index from the end, another expert for each place."""
        if routes is None:
            return None
        experts = 4 - 1 - torch.arange(routes.shape[-1], device=routes.device)
        return torch.where(routes < 0, experts.to(routes.dtype), routes)


@mutant(ENGINE, killers=("train.experts.not_recorded",), row="expert-replay")
class OneFreeRowFreesAll(Routed):
    """Routes a whole micro-batch freely as soon as one of its rows was not recorded."""

    def reroute(self, routes: Tensor | None) -> Tensor | None:
        """Forget all of them."""
        if routes is None or routes.shape[1] == 1:
            return routes
        free, later = routes[:, 0] < 0, routes[:, 1] >= 0
        return None if bool((free & later).any()) else routes


@mutant(ENGINE, killers=("train.experts.not_recorded",), row="expert-replay")
class LastRoutesAreKept(Routed):
    """Uses the routes of the batch before where a batch brings none."""

    _kept: Tensor | None = None

    def reroute(self, routes: Tensor | None) -> Tensor | None:
        """Keep what comes; where nothing comes use it, as far as it goes."""
        if routes is not None:
            self._kept = routes.clamp_min(0) * 0 + torch.arange(routes.shape[-1])
            return routes
        return None if self._kept is None else self._kept[:1, :1]


@mutant(ENGINE, killers=("train.experts.ranks",), row="expert-replay", ranks=2)
class OtherRanksRouteFreely(Routed):
    """Uses recorded routes on rank 0 only."""

    def reroute(self, routes: Tensor | None) -> Tensor | None:
        """Forget them on other ranks."""
        return routes if self.ranks.rank == 0 else None


@mutant(ENGINE, killers=("train.experts.gradient",), row="expert-replay")
class TrainsOnFreeRoutes(SecondTrainEngine):
    """Scores with the recorded routes, and drops them from the batch it trains on."""

    def train_step(self, batch: Batch, objective: Objective) -> TrainReport:
        """Drop the column once it was found fit."""
        self._running().columns.check(batch, frozenset(), frozenset())
        return super().train_step(_without(batch), objective)


@mutant(
    ENGINE, killers=("train.experts.with_tokens", "train.experts.gradient"), incident="AReno#524", row="expert-replay"
)
class RowsFromTheTop(SecondTrainEngine):
    """Cuts tokens into micro-batches, and takes their routes from the top of the whole column each time."""

    def _build(self, spec: TrainSpec, ranks: Ranks, device: torch.device, dtype: torch.dtype) -> Started:
        here = super()._build(spec, ranks, device, dtype)
        return attrs.evolve(here, columns=_FromTheTop(network=here.columns.network, spec=spec))


@attrs.frozen(kw_only=True, eq=False)
class _FromTheTop(Columns):
    whole: list[Tensor] = attrs.Factory(list)

    def check(self, batch: Batch, outputs: frozenset[Output], needed: frozenset[str]) -> None:
        """Keep the whole column."""
        Columns.check(self, batch, outputs, needed)
        self.whole[:] = [batch.tokens[ROUTED_EXPERTS]] if ROUTED_EXPERTS in batch.tokens else []

    def of(self, batch: Batch, outputs: frozenset[Output]) -> dict[str, Tensor]:
        """Take rows from the top."""
        if self.whole:
            batch = batch.with_tokens(**{ROUTED_EXPERTS: self.whole[0][: batch.num_tokens]})
        return Columns.of(self, batch, outputs)


class Replacing(SecondTrainEngine):
    """Runs every call with another function in the place of one of the network's or the columns' own."""

    place: Any = network_module  # Any: a module
    name = "choose"

    def other(self, right: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function used instead."""
        return right

    def _replaced(self, call: Callable[[], Any]) -> Any:
        right = getattr(self.place, self.name)
        setattr(self.place, self.name, self.other(right))
        try:
            return call()
        finally:
            setattr(self.place, self.name, right)

    def forward(self, batch: Batch, outputs: frozenset[Output]) -> Batch:
        """Score with the other function."""
        scored: Batch = self._replaced(lambda: SecondTrainEngine.forward(self, batch, outputs))
        return scored

    def train_step(self, batch: Batch, objective: Objective) -> TrainReport:
        """Step with the other function."""
        report: TrainReport = self._replaced(lambda: SecondTrainEngine.train_step(self, batch, objective))
        return report


@mutant(ENGINE, killers=("train.experts.recorded", "train.experts.row_order"), row="expert-replay")
class WeightsOfOtherExperts(Replacing):
    """Sends tokens to the recorded experts, with the weights of those the router would have chosen."""

    def other(self, right: Callable[..., Any]) -> Callable[..., Any]:
        """Choose freely, then put recorded experts in."""

        def choose(logits: Tensor, per_token: int, normalize: bool, recorded: Tensor | None) -> tuple[Tensor, Tensor]:
            chosen, weights = right(logits, per_token, normalize, None)
            if recorded is not None:
                chosen = torch.where(recorded >= 0, recorded.to(torch.int64), chosen)
            return chosen, weights

        return choose


@mutant(ENGINE, killers=("train.experts.gradient",), row="expert-replay")
class RouterNotTrained(Replacing):
    """Takes the weights of recorded experts as constants: the router gets no gradient from them."""

    def other(self, right: Callable[..., Any]) -> Callable[..., Any]:
        """Cut the gradient."""

        def choose(logits: Tensor, per_token: int, normalize: bool, recorded: Tensor | None) -> tuple[Tensor, Tensor]:
            chosen, weights = right(logits, per_token, normalize, recorded)
            return chosen, weights if recorded is None else weights.detach()

        return choose


@mutant(ENGINE, killers=("train.experts.recorded",), row="expert-replay")
class NotNormalizedInReplay(Replacing):
    """Lets the weights of recorded experts add up to less than one."""

    def other(self, right: Callable[..., Any]) -> Callable[..., Any]:
        """Leave the division out."""

        def choose(logits: Tensor, per_token: int, normalize: bool, recorded: Tensor | None) -> tuple[Tensor, Tensor]:
            result: tuple[Tensor, Tensor] = right(logits, per_token, normalize and recorded is None, recorded)
            return result

        return choose


@mutant(ENGINE, killers=("train.experts.free", "train.experts.recorded"))
class NeverNormalized(Replacing):
    """Ignores that this model's expert weights add up to one."""

    def other(self, right: Callable[..., Any]) -> Callable[..., Any]:
        """Leave the division out."""
        return lambda logits, per_token, _normalize, recorded: right(logits, per_token, False, recorded)


@mutant(ENGINE, killers=("train.experts.refused",), incident="Megatron-LM#4168", row="expert-replay")
class TakesRepeatedExperts(Replacing):
    """Takes rows that name one expert twice, the zeros of a buffer never written among them."""

    place = columns_module
    name = "check_routes"

    def other(self, right: Callable[..., Any]) -> Callable[..., Any]:
        """Swallow that refusal."""

        def check(routes: Tensor, *limits: int) -> None:
            try:
                right(routes, *limits)
            except BatchError as error:
                if "twice" not in error.what:
                    raise

        return check


@mutant(ENGINE, killers=("train.experts.refused",), row="expert-replay")
class ClampsExperts(Replacing):
    """Takes the nearest expert where a number is none."""

    place = columns_module
    name = "check_routes"

    def other(self, right: Callable[..., Any]) -> Callable[..., Any]:
        """Look at the shape only."""

        def check(routes: Tensor, layers: int, experts: int, per_token: int) -> None:
            right(torch.full_like(routes, -1), layers, experts, per_token)

        return check

    def forward(self, batch: Batch, outputs: frozenset[Output]) -> Batch:
        """Clamp."""
        if ROUTED_EXPERTS in batch.tokens:
            batch = batch.with_tokens(**{ROUTED_EXPERTS: batch.tokens[ROUTED_EXPERTS].clamp(-1, 3)})
        return super().forward(batch, outputs)


@mutant(ENGINE, killers=("train.experts.dense",), row="expert-replay")
class DenseTakesRoutes(SecondTrainEngine):
    """Drops the routes silently where the model has no experts."""

    def forward(self, batch: Batch, outputs: frozenset[Output]) -> Batch:
        """Drop them."""
        return super().forward(batch if self._running().architecture.num_experts else _without(batch), outputs)

    def train_step(self, batch: Batch, objective: Objective) -> TrainReport:
        """Drop them."""
        return super().train_step(batch if self._running().architecture.num_experts else _without(batch), objective)


@mutant(ENGINE, killers=("train.experts.kept",))
class RoutesNotReturned(SecondTrainEngine):
    """Gives the batch back without the routes it came with."""

    def forward(self, batch: Batch, outputs: frozenset[Output]) -> Batch:
        """Drop the column."""
        return _without(super().forward(batch, outputs))


@mutant(ENGINE, killers=("train.experts.refused_on_all",), row="expert-replay", ranks=2)
class RefusesAlone(SecondTrainEngine):
    """Looks at routes before it talks to the other ranks, and raises alone."""

    def train_step(self, batch: Batch, objective: Objective) -> TrainReport:
        """Look first."""
        self._running().columns.check(batch, objective.outputs, objective.columns)
        return super().train_step(batch, objective)


def _without(batch: Batch) -> Batch:
    tokens = {str(name): column for name, column in batch.tokens.items() if name != ROUTED_EXPERTS}
    sequences = {str(name): column for name, column in batch.sequences.items()}
    return Batch.of(tokens, sequences, batch.lengths)
