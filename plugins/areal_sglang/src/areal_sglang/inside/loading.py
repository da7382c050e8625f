"""Watch a load: every parameter must be written, and every tensor offered must be taken.

SGLang's loaders pass over a name they do not know, with a line in the log at most.

Knows: which memory belongs to which parameter, and every copy into it while a load runs.
Does not know: names of one model or another, fused or sharded parameters; only how much of each was written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from attrs import frozen
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

_WRITES = {torch.ops.aten.copy_.default, torch.ops.aten.fill_.Scalar, torch.ops.aten.zero_.default}

_MADE_HERE = ("_scale", "_scale_inv", "_zero_point")
"""How parameters end that a quantised model may lack in its folder: the engine makes them itself."""
at_start: set[str] = set()
"""Those of them that the first load left as they are."""
_last: Watch | None = None


@frozen
class _Place:
    """Where in a parameter a tensor was written, without keeping the memory alive."""

    memory: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    @classmethod
    def of(cls, written: Tensor) -> _Place:
        """Return the place of a view."""
        memory = written.untyped_storage().data_ptr()
        return cls(memory, tuple(written.shape), written.stride(), int(written.storage_offset()))


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types here
    """Counts elements written per parameter while it is entered, and which offered tensors wrote nothing."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._sizes: dict[int, int] = {}
        self._names: dict[int, str] = {}
        for name, parameter in model.named_parameters():
            memory = parameter.untyped_storage().data_ptr()
            self._names.setdefault(memory, name)
            self._sizes[memory] = max(self._sizes.get(memory, 0), parameter.numel())
        self.model = model
        self._written: Counter[int] = Counter()
        self._places: dict[str, _Place] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        """Of the tensors offered, whole."""
        self._offered = ""
        self._idle: list[str] = []
        self._late = 0
        self._offering = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # Any: torch's own
        if func in _WRITES and isinstance(args[0], Tensor):
            memory = args[0].untyped_storage().data_ptr()
            if memory in self._sizes:
                self._written[memory] += args[0].numel()
                if self._offered and func is torch.ops.aten.copy_.default:
                    self._places[self._offered] = _Place.of(args[0])
                self._late += not self._offering
        return func(*args, **(kwargs or {}))

    def offered(self, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """Yield the tensors, and note those after which nothing was written before the next."""
        for name, tensor in weights:
            before, self._offered = self._written.total(), name
            self.shapes[name] = tuple(tensor.shape)
            yield name, tensor
            if self._written.total() == before:
                self._idle.append(name)
        self._offering, self._offered = False, ""

    def read_back(self) -> Mapping[str, Tensor]:
        """Return what the parameters hold where each offered tensor was written, copied to the CPU."""
        memories = {each.untyped_storage().data_ptr(): each.detach() for each in self.model.parameters()}
        found: dict[str, Tensor] = {}
        for name, place in self._places.items():
            view = memories[place.memory].as_strided(place.shape, place.stride, place.offset)
            found[name] = view.cpu().clone(memory_format=torch.contiguous_format)
        return found

    @property
    def uncovered(self) -> set[str]:
        """Return the parameters not wholly written."""
        return {self._names[memory] for memory, size in self._sizes.items() if self._written[memory] < size}

    @property
    def skipped(self) -> list[str]:
        """Return the tensors nothing took; none can be told where a loader collects before it writes."""
        return [] if self._late else self._idle


def read_back() -> Mapping[str, Tensor]:
    """Return this rank's part of the weights served, under the names they were last offered by; for tests."""
    return _watch().read_back()


def shapes() -> Mapping[str, tuple[int, ...]]:
    """Return the whole shapes of the weights served."""
    return _watch().shapes


def model_served() -> nn.Module:
    """Return the model of this rank."""
    return _watch().model


def _watch() -> Watch:
    assert _last is not None, "nothing is asked before the first load"
    return _last


def watched(original: Callable[..., Any], model: nn.Module, weights: Any, target_device: Any) -> Any:
    """Hook of DefaultModelLoader.load_weights_and_postprocess, for the first load and every update from a folder."""
    global _last
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()  # a step of the old weights may still be computed
    first = _last is None
    if first:
        _tie(model)
    _last = Watch(model)
    with _last:
        result = original(model, _last.offered(weights), target_device)
    if first:
        at_start.update(name for name in _last.uncovered if name.endswith(_MADE_HERE))
    return result


def _tie(model: nn.Module) -> None:
    """Let a head that is the embedding be it: some of SGLang's models pass over the word in config.json."""
    if not getattr(getattr(model, "config", None), "tie_word_embeddings", False):
        return
    head, embedding = getattr(model, "lm_head", None), getattr(getattr(model, "model", None), "embed_tokens", None)
    own = getattr(head, "weight", None)
    shared = getattr(embedding, "weight", None)
    if isinstance(own, nn.Parameter) and isinstance(shared, nn.Parameter) and own.shape == shared.shape:
        assert isinstance(head, nn.Module)
        head.weight = shared


def problems() -> list[str]:
    """Return what the last load left undone, in words; empty when all is well."""
    if _last is None:
        return ["nothing was loaded"]
    left = sorted(_last.uncovered - at_start)
    words = [f"parameter {name} was only partly written" for name in left]
    return words + [f"tensor {name} was passed over" for name in _last.skipped]
