"""The tensors a transport has to carry: named sets that two processes can make alike.

Knows: dtypes, shapes, strides and names that transports get wrong.
Does not know: transports.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor

DTYPES = ("float32", "bfloat16", "float16", "float64", "int64", "int32", "int16", "int8", "uint8", "bool")
"""What a model folder may hold; every transport carries them."""
_FAR = 70_001
NAMES = (
    "model.layers.0.self_attn.q_proj.weight",
    "model.layers.10.self_attn.q_proj.weight",
    "model.layers.1.self_attn.q_proj.weight",
    "a",
    "a/b",
    "a.b",
    "../up",
    "/root",
    "W",
    "w",
    "with space",
    "quote\"'\\",
    "line\nbreak",
    "gr\u00f6\u00dfe",
    "index.json",
    "x" * 300,
)
"""Names are data: none of them may become a path, a separator or a format."""


def noise(shape: tuple[int, ...], dtype: str, seed: int) -> Tensor:
    """Return a tensor of random bits; every bit pattern of the dtype may come, NaNs among them."""
    kind: torch.dtype = getattr(torch, dtype)
    generator = torch.Generator().manual_seed(seed)
    count = int(torch.Size(shape).numel())
    if kind is torch.bool:
        return torch.randint(0, 2, shape, generator=generator, dtype=torch.uint8).bool()
    data = torch.randint(0, 256, (count * kind.itemsize,), generator=generator, dtype=torch.uint8)
    return data.view(kind).reshape(shape)


def plain(seed: int) -> dict[str, Tensor]:
    """Some float32 tensors of different sizes; all bytes follow the seed."""
    shapes = {"embed.weight": (32, 16), "layers.0.weight": (16, 16), "norm.weight": (16,), "layers.1.weight": (8, 24)}
    return {name: noise(shape, "float32", 31 * seed + number) for number, (name, shape) in enumerate(shapes.items())}


def dtypes(seed: int) -> dict[str, Tensor]:
    """One matrix and one odd-sized vector of every dtype, so that alignment matters."""
    made = {}
    for number, dtype in enumerate(DTYPES):
        made[f"matrix.{dtype}"] = noise((5, 3), dtype, 100 * seed + number)
        made[f"vector.{dtype}"] = noise((7,), dtype, 100 * seed + 50 + number)
    return made


def special(seed: int) -> dict[str, Tensor]:
    """Values that casts and comparisons lose: both zeros, infinities, NaNs with a payload, denormals, extremes."""
    bits = torch.tensor([0, -(2**31), 0x7F800000, -8388608, 0x7FC00001, -4194303, 1, -2147483647, seed, 0x3F800000])
    return {
        "float32": bits.to(torch.int32).view(torch.float32),
        "bfloat16": torch.tensor([0, -32768, 0x7F80, -128, 0x7FC1, 1, seed], dtype=torch.int16).view(torch.bfloat16),
        "int64": torch.tensor([2**63 - 1, -(2**63), 2**53 + 1, seed]),
        "bool": torch.tensor([True, False, True]),
    }


def shapes(seed: int) -> dict[str, Tensor]:
    """Scalars, empty tensors, one element, many dimensions, and every kind of stride."""
    base = noise((6, 8), "float32", seed)
    return {
        "scalar": noise((), "float32", seed + 1),
        "empty": torch.empty(0),
        "empty.rows": torch.empty((0, 3)),
        "empty.columns": torch.empty((3, 0), dtype=torch.bfloat16),
        "one": noise((1,), "int8", seed + 2),
        "five": noise((2, 1, 3, 1, 2), "float16", seed + 3),
        "transposed": base.t(),
        "rows": base[::2],
        "columns": base[:, 1:5],
        "offset": base.reshape(-1)[5:17],
        "expanded": base[:1].expand(4, 8),
        "permuted": noise((2, 3, 4), "bfloat16", seed + 4).permute(2, 0, 1),
        "same": base,
        "parameter": torch.nn.Parameter(noise((3, 3), "float32", seed + 5)),
        "last": noise((3,), "uint8", seed + 6),
    }


def names(seed: int) -> dict[str, Tensor]:
    """A small tensor under each awkward name; no two alike."""
    return {name: noise((3,), "int32", 1000 * seed + number) for number, name in enumerate(NAMES)}


def large(seed: int) -> dict[str, Tensor]:
    """A tensor of some thousand elements of every dtype, and one in which few changes are far apart."""
    made = {f"many.{dtype}": noise((41, 53), dtype, 200 * seed + number) for number, dtype in enumerate(DTYPES)}
    return {**made, "far": noise((140_003,), "int8", seed)}


def nudged(tensors: Mapping[str, Tensor], seed: int) -> dict[str, Tensor]:
    """Return copies of which one element in a hundred, or one in seventy thousand, has another bit."""
    changed = {name: tensor.clone() for name, tensor in tensors.items()}
    for tensor in changed.values():
        step = 97 if tensor.numel() < _FAR else _FAR
        places = torch.arange(seed % 7, tensor.numel(), step) * tensor.element_size()
        tensor.reshape(-1).view(torch.uint8)[places] ^= 1
    return changed


SETS: Mapping[str, Callable[[int], dict[str, Tensor]]] = MappingProxyType(
    {"plain": plain, "dtypes": dtypes, "special": special, "shapes": shapes, "names": names}
)
"""Name -> tensors for a seed."""


def sized(total: int, parts: int, seed: int) -> dict[str, Tensor]:
    """Return `parts` uint8 tensors of `total` bytes together; cheap to make at any size, different everywhere."""
    made = {}
    for number in range(parts):
        size = total // parts + (number % 3)
        row = noise((4099,), "uint8", 7 * seed + number)
        made[f"part.{number}"] = row.repeat(size // 4099 + 1)[:size].clone()
    return made
