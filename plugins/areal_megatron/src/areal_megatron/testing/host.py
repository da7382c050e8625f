"""Answers in place of torch.cuda, so that Megatron-Core runs on a CPU: a test aid.

Knows: the calls of megatron-core 0.16 that take a GPU for granted.
Does not know: models. It changes nothing that is computed.

Megatron asks torch.cuda for the current device, makes tensors on "cuda" by name, dispatches tokens to experts on a
stream of its own, and gathers unlike many tokens of each rank, which gloo does not. While `answering` is entered, and
only in the thread that entered it for tensors made by name, those answers are the CPU's.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor
from torch.overrides import TorchFunctionMode

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from megatron.core.tensor_parallel import mappings
    from megatron.core.tensor_parallel import random as megatron_random
    from megatron.core.transformer.moe import token_dispatcher

_CPU = torch.device("cpu")
_gather = mappings._gather_along_first_dim


@contextmanager
def answering() -> Iterator[None]:
    """Answer for torch.cuda within."""
    with ExitStack() as stack:
        for name, answer in _ANSWERS.items():
            stack.enter_context(patch.object(torch.cuda, name, answer))
        stack.enter_context(patch.object(torch.cuda.random, "get_rng_state", _random_state))
        stack.enter_context(patch.object(megatron_random, "_set_cuda_rng_state", _nothing))
        stack.enter_context(patch.object(token_dispatcher, "maybe_move_tensor_to_cpu", _moved))
        stack.enter_context(patch.object(mappings, "_gather_along_first_dim", _gathered))
        stack.enter_context(_OnCpu())
        yield


class _OnCpu(TorchFunctionMode):
    """Make what is asked for on cuda on the CPU. Any, here and below: any function of torch."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is Tensor.cuda:
            return args[0]
        if not kwargs:
            return func(*args)
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs = {**kwargs, "device": _CPU}
        return func(*args, **kwargs)


class _Stream:
    """A stream, and an event of one, on which everything is done already."""

    def wait_stream(self, stream: _Stream) -> None:
        pass

    def record_event(self) -> _Stream:
        return self

    def synchronize(self) -> None:
        pass


def _nothing(*args: Any, **options: Any) -> None:
    pass


def _device() -> torch.device:
    return _CPU


def _random_state(*args: Any, **options: Any) -> Tensor:
    return torch.get_rng_state()


def _within(stream: _Stream) -> AbstractContextManager[None]:
    return nullcontext()


def _moved(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
    """Return the sizes of an uneven exchange as Megatron has them after a copy from the GPU."""
    return tensor.numpy() if isinstance(tensor, Tensor) and as_numpy else tensor


def _gathered(
    part: Tensor,
    group: dist.ProcessGroup,
    output_split_sizes: Sequence[int] | None = None,
    use_global_buffer: bool = False,
) -> Tensor:
    """Return the rows of all ranks, `output_split_sizes` of each: filled up to as many, gathered, and cut again."""
    if output_split_sizes is None:
        like_many: Tensor = _gather(part, group, None, use_global_buffer)
        return like_many
    most = max(1, *output_split_sizes)
    filled = torch.cat([part, part.new_zeros(most - len(part), *part.shape[1:])])
    every = _gather(filled, group).split(most)
    return torch.cat([rows[:size] for rows, size in zip(every, output_split_sizes, strict=True)])


_ANSWERS: Mapping[str, Any] = {
    "current_device": _device,
    "current_stream": _Stream,
    "Stream": _Stream,
    "stream": _within,
    "synchronize": _nothing,
    "empty_cache": _nothing,
}
