"""Load a Hugging Face folder for generation, or say why it cannot be.

Knows: which architectures the slab attention can serve, and what a request must not exceed.
Does not know: the cache or the loop.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from attrs import frozen
from torch import Tensor
from transformers import AttentionInterface, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from areal_core.contract.errors import CapabilityError, ModelError
from areal_core.contract.inference import InferenceSpec
from areal_core.contract.train import Head
from areal_core.contract.workflow import Tokenizer
from areal_reference.infer.attention import ATTENTION_NAME, LayerShape, ProbeStep, slab_attention
from areal_torch import hf, lora
from areal_torch.device import open_device
from areal_torch.folder_checks import check_number, refusing

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
BATCH_DEPENDENT_ROPE = frozenset({"dynamic", "longrope"})
"""Rotary scalings that look at the longest sequence of the batch: a neighbour would change the result."""
PROBE_TOKENS = 8
OTHER_BACKENDS = "use a full-attention decoder such as Qwen3, Qwen2 or Llama, or the vllm or sglang backend"


@frozen(kw_only=True, eq=False)
class LoadedModel:
    """A model ready for the slab. `end_ids` are the model's own end tokens. Any: transformers is untyped."""

    model: Any
    layers: tuple[LayerShape, ...]
    device: torch.device
    dtype: torch.dtype
    vocabulary: int
    context_length: int
    end_ids: tuple[int, ...]
    tokenizer: Tokenizer | None


def load_model(spec: InferenceSpec) -> LoadedModel:
    """Read the folder of `spec` onto its device.

    Raises:
        ModelError: it is no folder, holds no causal language model in safetensors, or an architecture whose
            attention the slab cannot stand in for; or the adapter to begin with does not fit.
        PlanError: no layer has the name of one of the adapter's.
        CapabilityError: a layout that splits one replica over devices.
        ResourceError: the device is not there.
    """
    split = {axis: degree for axis, degree in spec.layout.items() if axis != "d" and degree > 1}
    if split:
        raise CapabilityError(
            f"layout {dict(spec.layout)} splits one replica over devices",
            why="the reference generator runs on one device",
            fix="use data parallelism alone, or the vllm or sglang backend",
        )
    if spec.dtype not in DTYPES:
        raise ModelError(f"dtype {spec.dtype!r} cannot be served", why=f"allowed are {', '.join(DTYPES)}")
    config = hf.load_config(spec.model_path, Head.CAUSAL_LM)
    text = config.get_text_config()
    rope = (getattr(text, "rope_parameters", None) or {}).get("rope_type")
    if rope in BATCH_DEPENDENT_ROPE:
        raise ModelError(
            f"model {spec.model_path!r} uses rotary scaling {rope!r}",
            why="it depends on the longest sequence of the batch, so requests would change each other",
            fix=OTHER_BACKENDS,
        )
    context = _context_length(hf.context_length(config), spec)
    device = open_device(spec.device, 0)
    model = _read_weights(spec, config).to(device).eval()
    layers = _probe(model, spec, context, device)
    if spec.lora is not None:
        lora.serve_adapter(model, spec.lora)
    return LoadedModel(
        model=model.requires_grad_(False),
        layers=layers,
        device=device,
        dtype=DTYPES[spec.dtype],
        vocabulary=int(text.vocab_size),
        context_length=context,
        end_ids=_end_ids(model),
        tokenizer=_tokenizer(Path(spec.model_path)),
    )


def _context_length(own: int, spec: InferenceSpec) -> int:
    context = spec.context_length or own
    if context <= 0 or (own and context > own):
        raise ModelError(
            f"a context of {context} tokens does not fit model {spec.model_path!r}",
            why=f"its config.json allows {own} positions",
            fix=f"set rollout.context_length between 1 and {own}" if own else "set rollout.context_length",
        )
    return context


def _read_weights(spec: InferenceSpec, config: Any) -> Any:
    """Return the model on the CPU. Any: transformers is untyped."""
    AttentionInterface.register(ATTENTION_NAME, slab_attention)
    logging.disable_progress_bar()
    check_number(spec.model_path, hf.empty_model(config, Head.CAUSAL_LM))
    with refusing(f"weights in {spec.model_path!r} cannot be loaded"):
        model, info = AutoModelForCausalLM.from_pretrained(
            spec.model_path,
            config=config,
            dtype=DTYPES[spec.dtype],
            attn_implementation=ATTENTION_NAME,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    if info["missing_keys"]:
        raise ModelError(
            f"weights in {spec.model_path!r} do not match its config.json",
            why=f"missing: {', '.join(sorted(info['missing_keys'])[:4])}",
            fix="use config.json and *.safetensors from the same model",
        )
    return model


@torch.inference_mode()
def _probe(model: Any, spec: InferenceSpec, context: int, device: torch.device) -> tuple[LayerShape, ...]:
    """Run a few tokens through the model and return what each layer would cache, if the slab can stand in."""
    step = ProbeStep()
    logits = _few_tokens(model, device, step)
    expected = int(model.config.get_text_config().num_hidden_layers)
    foreign = sorted({name for layer in step.layers.values() for name in layer.foreign})
    window = min((layer.window for layer in step.layers.values() if layer.window is not None), default=context)
    if sorted(step.layers) != list(range(expected)):
        why = f"{len(step.layers)} of its {expected} layers use transformers' attention interface"
    elif foreign:
        why = f"its attention takes {', '.join(foreign)}, which the slab attention does not know"
    elif window < context:
        why = f"it attends to the last {window} tokens only, within a context of {context}"
    elif not _agrees_with_eager(model, device, logits):
        why = "its logits differ from those of its own attention"
    else:
        return tuple(step.layers[index] for index in range(expected))
    raise ModelError(
        f"the reference generator cannot serve {type(model).__name__} in {spec.model_path!r}",
        why=why,
        fix=OTHER_BACKENDS,
    )


def _few_tokens(model: Any, device: torch.device, step: ProbeStep | None) -> Tensor:
    positions = torch.arange(PROBE_TOKENS, device=device).unsqueeze(0)
    ids = positions % int(model.config.get_text_config().vocab_size)
    extra = {} if step is None else {"areal_step": step}
    logits: Tensor = model(input_ids=ids, position_ids=positions, use_cache=False, **extra).logits.float()
    return logits


def _agrees_with_eager(model: Any, device: torch.device, logits: Tensor) -> bool:
    """Compare with the architecture's own attention, which may hide a bias in the mask it would be given."""
    model.set_attn_implementation("eager")
    own = _few_tokens(model, device, None)
    model.set_attn_implementation(ATTENTION_NAME)
    tolerance = (1e-3 if logits.dtype == model.dtype else 0.1) * float(own.abs().max())
    return bool(((logits - own).abs() <= tolerance).all())


def _end_ids(model: Any) -> tuple[int, ...]:
    """Return the model's end tokens, as its generation config or else its config says."""
    own = getattr(model, "generation_config", None)
    end = own.eos_token_id if own is not None and own.eos_token_id is not None else model.config.eos_token_id
    if end is None:
        return ()
    return tuple(end) if isinstance(end, list | tuple) else (int(end),)


def _tokenizer(folder: Path) -> Tokenizer | None:
    """Return the folder's tokenizer if it has one; only stop strings need it."""
    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")):
        return None
    with refusing(f"the tokenizer in {str(folder)!r} does not load"):
        tokenizer: Tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    return tokenizer
