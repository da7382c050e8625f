"""The policy as an adapter: each version a folder in PEFT's format, staged like weights, loaded beside the base model.

Knows: what an adapter's tensors must be, under which name a server has each version, which names it can forget.
Does not know: routes (`PolicyRoutes`), when a version is loaded (`updates`), adapters that requests name (`adapting`).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path

from attrs import frozen
from safetensors.torch import load_file
from torch import Tensor

from areal_core.contract.errors import CoverageError
from areal_core.contract.inference import InferenceSpec
from areal_core.contract.train import LoraSpec
from areal_core.contract.weights import WeightManifest
from areal_core.weights.coverage import check_names
from areal_core.weights.tensors import manifest_of, torch_dtype
from areal_serving.adapter_folder import PREFIX, A, B, check_adapter
from areal_serving.adapter_routes import Tell
from areal_serving.adapters import ServedAdapter
from areal_serving.calls import State
from areal_serving.dialect import Dialect
from areal_serving.http import Api
from areal_serving.model import ServedModel
from areal_serving.staging import StagedWeights, Staging

WEIGHTS_FILE = "adapter_model.safetensors"


@frozen(kw_only=True)
class PolicyRoutes:
    """How a server is told. `load` may be told what it has, and `unload` what it does not have.

    `stamp` has it stamp a version from the next token on.
    """

    load: Tell
    unload: Tell
    stamp: Callable[[Api, int], Awaitable[None]]


class AdapterStaging(Staging):
    """Receives versions of one adapter of one model."""

    weights_file = WEIGHTS_FILE

    def __init__(self, model: ServedModel, root: Path, lora: LoraSpec) -> None:
        super().__init__(model, root)
        self._lora = lora
        self._shapes = adapter_shapes(model.shapes, lora)

    def begin(self) -> StagedWeights:
        """Stage the adapter that version 0 is.

        Raises:
            ModelError, CoverageError: the folder it begins as is no adapter of this model, or has other layers.
        """
        folder = Path(self._lora.path)
        check_adapter(folder, self._model.shapes)
        tensors = load_file(folder / WEIGHTS_FILE)
        source = _Held(manifest=manifest_of(tensors.items(), version=0), tensors=tensors)
        return self.receive(source, 0, served=-1, stop=threading.Event())

    def check(self, manifest: WeightManifest) -> None:
        """Check that a sender's tensors are every A and B of the layers the adapter has.

        Raises:
            CoverageError: a name without a partner, another shape, or no floating dtype.
        """
        check_names(self._shapes, manifest)
        for spec in manifest.tensors:
            if spec.shape != self._shapes[spec.name] or not torch_dtype(spec).is_floating_point:
                raise CoverageError(
                    f"tensor {spec.name!r} was announced as {spec.dtype} {list(spec.shape)}",
                    why=f"the adapter has {list(self._shapes[spec.name])} floating-point numbers",
                    fix="train and serve the same model, with one lora",
                )

    def fill(self, folder: Path) -> None:
        """Write the file that says what the tensors are."""
        lora, layers = self._lora, {name.removeprefix(PREFIX).removesuffix(A) for name in self._shapes}
        config = {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": str(self._model.path),
            "r": lora.rank,
            "lora_alpha": lora.alpha,
            "lora_dropout": 0.0,
            "bias": "none",
            "target_modules": sorted({layer.rpartition(".")[2] for layer in layers if not layer.endswith(B)}),
            "inference_mode": True,
        }
        (folder / "adapter_config.json").write_text(json.dumps(config, indent=1))


class PolicyAdapter:
    """The versions of the policy that one engine's server has; a `Loader` as `updates` takes it.

    One that was proved and never committed stays in the server until the next version is.
    """

    def __init__(self, dialect: Dialect, routes: PolicyRoutes, state: State) -> None:
        self._dialect = dialect
        self._routes = routes
        self._state = state
        self._there: set[str] = set()

    async def prove(self, api: Api, folder: Path) -> Mapping[str, str]:
        """Have the server read what is staged, and load it beside the version it serves: it refuses it now or never.

        Raises:
            FingerprintMismatch: its workers do not agree.
            CapabilityError: it cannot serve such an adapter.
        """
        proved = await self._dialect.prove(api, folder)
        await self._drop(api)
        await self._load(api, folder)
        return proved

    async def load(self, api: Api, folder: Path, version: int, *, keep_cache: bool) -> None:
        """With nothing in flight: have later requests use it, and stamp `version`. Entries of the cache are its own."""
        await self._load(api, folder)
        await self._routes.stamp(api, version)
        self._state.policy = folder.name
        await self._drop(api)

    async def _load(self, api: Api, folder: Path) -> None:
        self._there.add(folder.name)
        await self._routes.load(api, _served(folder))

    async def _drop(self, api: Api) -> None:
        for name in self._there - {self._state.policy}:
            await self._routes.unload(api, _served(Path(name)))
            self._there.discard(name)


@frozen(kw_only=True)
class _Held:
    """A WeightSource of tensors in memory."""

    manifest: WeightManifest
    tensors: Mapping[str, Tensor]

    def buckets(self) -> Iterator[Mapping[str, Tensor]]:
        yield self.tensors

    def close(self) -> None:
        pass


def adapter_shapes(shapes: Mapping[str, tuple[int, ...]], lora: LoraSpec) -> dict[str, tuple[int, ...]]:
    """Return the shape of every A and B by PEFT's name, `shapes` being the model's by Hugging Face name."""
    found: dict[str, tuple[int, ...]] = {}
    for name, shape in shapes.items():
        layer = name.removesuffix(".weight")
        if layer != name and len(shape) == 2 and layer.endswith(lora.targets):
            found[f"{PREFIX}{layer}{A}"] = (lora.rank, shape[1])
            found[f"{PREFIX}{layer}{B}"] = (shape[0], lora.rank)
    return found


def adapter_places(spec: InferenceSpec, max_adapters: int) -> int:
    """Return how many adapters a server has to make room for: those that requests name, and the policy."""
    return max_adapters + (spec.lora is not None)


def adapter_rank(spec: InferenceSpec, max_adapters: int, max_rank: int) -> int:
    """Return the highest rank a server has to take."""
    return max(max_rank if max_adapters else 1, spec.lora.rank if spec.lora else 1)


def _served(folder: Path) -> ServedAdapter:
    return ServedAdapter(name="policy", version=0, path=folder, served=folder.name)
