"""Megatron-Core, imported once and quietly: every name of it that this plugin uses.

Knows: that it warns at import of Transformer Engine and Apex, which a CPU has no use for.
Does not know: what the names are used for.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import megatron.core
    from megatron.core import parallel_state, tensor_parallel
    from megatron.core.distributed import DistributedDataParallel  # noqa: F401  imports what warns
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import HAVE_TE, get_gpt_decoder_block_spec
    from megatron.core.packed_seq_params import PackedSeqParams
    from megatron.core.pipeline_parallel import get_forward_backward_func
    from megatron.core.tensor_parallel.random import initialize_rng_tracker
    from megatron.core.transformer import TransformerConfig
    from megatron.core.transformer.moe import moe_utils
    from megatron.core.transformer.transformer_block import TransformerBlockSubmodules

VERSION = str(megatron.core.__version__)
if not HAVE_TE:
    moe_utils.te_general_gemm = None  # it is read, and without Transformer Engine never assigned


@contextmanager
def quiet() -> Iterator[None]:
    """Leave out within what Megatron warns of, and what torch says of the names Megatron calls it by."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"megatron\.")
        warnings.filterwarnings("ignore", message="`torch.distributed.", category=FutureWarning)
        yield


__all__ = [
    "HAVE_TE",
    "VERSION",
    "GPTModel",
    "PackedSeqParams",
    "TransformerBlockSubmodules",
    "TransformerConfig",
    "get_forward_backward_func",
    "get_gpt_decoder_block_spec",
    "initialize_rng_tracker",
    "parallel_state",
    "quiet",
    "tensor_parallel",
]
