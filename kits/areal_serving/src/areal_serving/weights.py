"""The arithmetic of weights that arrive: what they are, how they are cut, whether all came. The core's own.

Engines compare what they hold with what the trainer sent, so both sides compute with the same functions.
Knows: which of the core's functions an engine needs.
Does not know: how any of them works (`areal_core.weights`).
"""

from areal_core.config.model_folder import inspect_model, read_json
from areal_core.weights.coverage import Coverage, check_names
from areal_core.weights.tensors import fingerprint, num_bytes, torch_dtype
from areal_torch.bucketing import bucket_specs

__all__ = [
    "Coverage",
    "bucket_specs",
    "check_names",
    "fingerprint",
    "inspect_model",
    "num_bytes",
    "read_json",
    "torch_dtype",
]
