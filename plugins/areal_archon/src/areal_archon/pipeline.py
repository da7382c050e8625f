"""A model cut into stages over pipeline ranks, as `areal_torch.step` drives it.

Knows: torch's pipeline schedules, packed micro-batches of unequal lengths, when FSDP2 reduces gradients.
Does not know: what a stage computes, how its weights are sharded, losses.

A schedule sends tensors of one shape. So every micro-batch of a step is filled up to the longest one
with sequences of their own that are off the loss mask, and their columns are cut off again before
anybody sees them. The schedule is built anew for each step: torch gives every stage a buffer for each
micro-batch of one length, and keeping those of other lengths would cost more memory than building costs time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Protocol

import torch
import torch.distributed as dist
from attrs import define
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage

from areal_archon.filling import Pass, filled
from areal_archon.schedules import Schedule
from areal_archon.units import apart, check_units
from areal_core.contract.batch import Batch
from areal_core.contract.errors import ArealError, LayoutError, ModelError
from areal_core.contract.train import Output
from areal_torch.attention import Packing
from areal_torch.context import ContextRanks
from areal_torch.optimizer import local
from areal_torch.pipelining import Scoring
from areal_torch.step import Columns, Score


class StageModule(Protocol):
    """How the module of a stage is called; every rank of the pipeline gives the same packing and batch."""

    def __call__(
        self, inputs: Tensor, *, packing: Packing, batch: Batch, outputs: frozenset[Output]
    ) -> Tensor | Columns:
        """Compute one stage.

        Args:
            inputs: int64 [S] token ids for stage 0, hidden states [S, D] for the others; S are the tokens
                `packing.part` of this rank, in this order.
            packing: of `batch`, over the context ranks if there are any.
            batch: the micro-batch, filled up to T tokens; what fills it is off the loss mask.

        Returns:
            Hidden states [S, D] for the next stage; the last stage returns one float32 [T] column per output.
        """


class PipelinedModel:
    """This rank's stages of a model; a `Pipeline` of `areal_torch.step`.

    Example, on rank r of the pipeline:
        schedule = Schedule(name="Interleaved1F1B", num_ranks=2, num_virtual=2)
        stages = [build(number, of=schedule.num_stages) for number in schedule.stages(r)]
        model = PipelinedModel(stages, schedule, group, hidden_size=64, dtype=torch.float32, device=device)

    With data ranks each stage is sharded by `fully_shard(stage)`, its root included: torch reduces the
    gradient of a stage once, after its last micro-batch. The units must add gradients up, not average them
    (`set_gradient_divide_factor(1.0)`).

    Args:
        stages: those of `schedule.stages(rank)`, in that order; see `StageModule`.
        group: the ranks of one pipeline, in its order.
        hidden_size: D of what stages hand on; dtype: of the same.
        context: the ranks that share every sequence.
        tied: the names of one weight that two stages hold, in the first and in the last stage. Both get the
            sum of the two gradients, equal to the bit. They must begin equal, and a norm must count one of them.

    Raises:
        LayoutError: as many stages were not asked for, or FSDP units that would give wrong gradients.
    """

    def __init__(
        self,
        stages: Sequence[nn.Module],
        schedule: Schedule,
        group: dist.ProcessGroup,
        *,
        hidden_size: int,
        dtype: torch.dtype,
        device: torch.device,
        context: ContextRanks | None = None,
        tied: tuple[str, str] | None = None,
    ) -> None:
        """Check the stages; nothing is sent."""
        self.stages, self.schedule = tuple(stages), schedule
        self._group, self._device, self._context = group, device, context
        self._hidden_size, self._dtype = hidden_size, dtype
        self._tied = tied
        self._numbers = schedule.stages(group.rank())
        if (group.size(), len(self.stages)) != (schedule.num_ranks, schedule.num_virtual):
            raise LayoutError(
                f"{len(self.stages)} stages on one of {group.size()} pipeline ranks",
                why=f"the schedule has {schedule.num_ranks} ranks of {schedule.num_virtual} stages",
                fix="build those that Schedule.stages names",
            )
        for stage in self.stages:
            check_units(stage, schedule)

    @property
    def first(self) -> nn.Module | None:
        """Return the first stage of the model, None if another rank has it."""
        return self._held(0)

    @property
    def last(self) -> nn.Module | None:
        """Return the last stage of the model, None if another rank has it."""
        return self._held(self.schedule.num_stages - 1)

    def accumulate(self, parts: Sequence[Batch], outputs: frozenset[Output], score: Score) -> None:
        """Add the gradient of every micro-batch; call `score` on the rank of the last stage, in order. Collective.

        Raises:
            TrainError: on every rank of this pipeline but the one where `score` raised its own error.
        """
        if not parts:
            return
        scoring = _Loss(score, [part.num_tokens for part in parts], sorted(outputs))
        with apart(self.stages):
            self._run(parts, outputs, scoring)
            scoring.agree(self._group, self.schedule.last_rank, self._device)
            if self._tied is not None:
                self._add_tied(*self._tied)

    @torch.no_grad()
    def columns_of(self, parts: Sequence[Batch], outputs: frozenset[Output]) -> Sequence[Columns]:
        """Return the columns of every micro-batch, equal on every rank of the pipeline. Collective."""
        if not parts:
            return []
        names = sorted(outputs)
        with apart(self.stages):
            computed = self._run(parts, outputs, None)
        longest = max(part.num_tokens for part in parts)
        columns = torch.empty(len(parts), len(names), longest, dtype=torch.float32, device=self._device)
        if computed is not None:
            columns.copy_(computed.view(-1, len(names), computed.shape[-1])[: len(parts), :, :longest])
        dist.broadcast(columns, group=self._group, group_src=self.schedule.last_rank)
        return [
            dict(zip(names, found[:, : part.num_tokens], strict=True))
            for part, found in zip(parts, columns, strict=True)
        ]

    def _held(self, number: int) -> nn.Module | None:
        return self.stages[self._numbers.index(number)] if number in self._numbers else None

    def _run(self, parts: Sequence[Batch], outputs: frozenset[Output], scoring: _Loss | None) -> Tensor | None:
        """Run one schedule; without scoring return the columns [M * k, T] where the last stage is."""
        passes = filled(parts, self.schedule.num_microbatches(len(parts)), self._device, self._context)
        ids = torch.stack([each.input_ids for each in passes])
        numbers = torch.arange(len(passes))  # on the CPU: to read one must not wait for the device
        stages = [self._stage(number, stage, ids, passes[0], outputs) for number, stage in self._by_number()]
        runner = self.schedule.build(stages, len(passes), scoring)
        with ExitStack() as hooks:
            for number, stage in self._by_number():
                self._attach(hooks, number, stage, passes, outputs)
            try:
                computed: Tensor | None = runner.step(
                    *([ids] if self.first is not None else []),
                    number=numbers,
                    target=numbers if scoring is not None else None,
                    return_outputs=scoring is None,
                )
            except RuntimeError as error:
                if isinstance(error.__cause__, ArealError):  # torch wraps what a stage raises
                    raise error.__cause__ from None
                raise
        return computed

    def _by_number(self) -> Iterator[tuple[int, nn.Module]]:
        return zip(self._numbers, self.stages, strict=True)

    def _stage(
        self, number: int, stage: nn.Module, ids: Tensor, like: Pass, outputs: frozenset[Output]
    ) -> PipelineStage:
        """Wrap a stage for torch, which is told all shapes so that it does not run the model to find them."""
        hidden = torch.empty(ids.shape[1], self._hidden_size, dtype=self._dtype, device="meta", requires_grad=True)
        columns = torch.empty(len(outputs), like.batch.num_tokens, device="meta", requires_grad=True)
        return PipelineStage(
            stage,
            number,
            self.schedule.num_stages,
            self._device,
            input_args=ids[:1].to("meta") if number == 0 else hidden,
            output_args=columns if number == self.schedule.num_stages - 1 else hidden,
            group=self._group,
        )

    def _attach(
        self, hooks: ExitStack, number: int, stage: nn.Module, passes: Sequence[Pass], outputs: frozenset[Output]
    ) -> None:
        """Translate between how torch calls a stage and how a stage is called."""
        is_last = number == self.schedule.num_stages - 1
        shape = (len(passes[0].input_ids), self._hidden_size)
        # What a stage returns is made ready before FSDP's own hooks see it, and what is sent is checked after them.
        given = partial(_given, passes, outputs)
        hooks.callback(stage.register_forward_pre_hook(given, prepend=True, with_kwargs=True).remove)
        returned = partial(_stacked, sorted(outputs)) if is_last else _released
        hooks.callback(stage.register_forward_hook(returned, prepend=True).remove)
        if not is_last:
            hooks.callback(stage.register_forward_hook(partial(_check_sent, number, shape, self._dtype)).remove)

    @torch.no_grad()
    def _add_tied(self, of_first: str, of_last: str) -> None:
        """Give both holders of one weight the sum of their gradients."""
        ends = [(self.first, of_first, self.schedule.last_rank), (self.last, of_last, 0)]
        held = [(stage.get_parameter(name), peer) for stage, name, peer in ends if stage is not None]
        own = [_gradient(parameter) for parameter, _ in held]
        if len(held) == 2 and held[0][0] is not held[1][0]:
            total = own[0] + own[1]
            for gradient in own:
                gradient.copy_(total)
        elif len(held) == 1:
            own[0].add_(self._exchange(own[0], held[0][1]))

    def _exchange(self, tensor: Tensor, peer: int) -> Tensor:
        sent, received = tensor.contiguous(), torch.empty_like(tensor, memory_format=torch.contiguous_format)
        operations = [
            dist.P2POp(dist.isend, sent, group=self._group, group_peer=peer),
            dist.P2POp(dist.irecv, received, group=self._group, group_peer=peer),
        ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        return received


@define
class _Loss(Scoring):
    """What a schedule takes for its loss; the target of a micro-batch is its number."""

    def __call__(self, columns: Tensor, target: Tensor) -> Tensor:
        return self.share(int(target), columns).clone()  # torch detaches it in place, which a view does not allow


def _given(
    passes: Sequence[Pass], outputs: frozenset[Output], stage: nn.Module, args: tuple[Tensor], kwargs: dict[str, Any]
) -> tuple[tuple[Tensor], dict[str, Any]]:  # Any: what hooks are given
    """Give a stage its micro-batch for the number torch passes along."""
    (inputs,) = args
    current = passes[int(kwargs["number"])]
    tokens = inputs if inputs.is_floating_point() else inputs.squeeze(0)
    return (tokens,), {"packing": current.packing, "batch": current.batch, "outputs": outputs}


def _stacked(names: Sequence[Output], stage: nn.Module, args: object, columns: Columns) -> Tensor:
    """Return columns as the one tensor that torch wants."""
    return torch.stack([columns[name].float() for name in names])


def _released(stage: nn.Module, args: object, hidden: Tensor) -> Tensor:
    """Return hidden states as torch can send and detach them: contiguous, and a view of nothing."""
    if hidden.is_contiguous() and not hidden._is_view():
        return hidden
    return hidden.clone(memory_format=torch.contiguous_format)


def _check_sent(
    number: int, shape: tuple[int, int], dtype: torch.dtype, stage: nn.Module, args: object, hidden: Tensor
) -> None:
    if (tuple(hidden.shape), hidden.dtype) != (shape, dtype):
        raise ModelError(
            f"stage {number} returned hidden states {hidden.dtype} {tuple(hidden.shape)}",
            why=f"the next stage expects {dtype} {shape}",
            fix="let every stage but the last return hidden states, in the dtype that is handed on",
        )


def _gradient(parameter: nn.Parameter) -> Tensor:
    """Return this rank's part of a gradient, zeros where nothing reached it; same memory."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return local(parameter.grad)
