"""Whether a run can train a model that takes images.

Knows: the kinds of model whose images training prepares, the files of an image processor, the claim `images`.
Does not know: whether any row will hold an image: only workflow and data set do.
"""

from __future__ import annotations

from importlib.util import find_spec

from areal_core.contract.errors import CapabilityError, EngineMissing, ModelError, PlanError
from areal_core.plugins.extensions import ImageModel
from areal_core.plugins.install import pip_install
from areal_core.plugins.registry import Registry

KINDS = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
"""`model_type` of the models whose processors give `pixel_values` and `image_grid_thw`."""
PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")
"""One of them tells a folder's image processor."""


def check_role(name: str, role: str, backend: str, model: ImageModel, registry: Registry, device: str) -> None:
    """Refuse a backend that cannot take the images a model takes.

    Args:
        name: the run's role, such as `actor`.
        role: the backend's, `train` or `infer`.

    Raises:
        CapabilityError: the backend does not claim `images`.
        PlanError: a critic: no backend trains a value head on images.
        ModelError: the model has a part that sees, and no token that stands for an image.
    """
    if model.image_token_id is None:
        raise ModelError(
            f"model folder {str(model.path)!r} holds a {model.architecture} without a token for images",
            why="config.json names no image_token_id: prompts could not mark where an image belongs",
            fix="use a model whose architecture ends in ForCausalLM, or one of " + ", ".join(KINDS),
        )
    if name == "critic":
        raise PlanError(
            f"critic: {str(model.path)!r} is a model that takes images",
            why="no train backend has a value head for one",
            fix="leave the critic out; algorithm.advantages.reward_norm.mean=group gives a baseline without it",
        )
    try:
        registry.require(role, backend, "images", device=device)
    except CapabilityError as error:
        raise CapabilityError(
            f"{name}: {role} backend {backend!r} cannot run {str(model.path)!r}, a model that takes images",
            why=error.why or error.what,
            fix=error.fix,
        ) from None


def check_processor(model: ImageModel) -> None:
    """Refuse a model whose images could not be prepared for training; a model without images passes.

    Raises:
        ModelError: a kind of model nobody prepares images for, or a folder without an image processor.
        EngineMissing: pillow is not installed.
    """
    if model.image_token_id is None:
        return
    if model.model_type not in KINDS:
        raise ModelError(
            f"model folder {str(model.path)!r} takes images and is of kind {model.model_type!r}",
            why=f"training prepares the images of {', '.join(KINDS)}",
            fix="use a model of one of these kinds, or a text-only one",
        )
    if not any((model.path / file).is_file() for file in PROCESSOR_FILES):
        raise ModelError(
            f"model folder {str(model.path)!r} takes images and has no image processor",
            why=f"there is none of {', '.join(PROCESSOR_FILES)}",
            fix="copy it from where the model came from: AutoImageProcessor.from_pretrained(...).save_pretrained(DIR)",
        )
    if find_spec("PIL") is None:
        raise EngineMissing(
            f"model folder {str(model.path)!r} takes images, and pillow is not installed",
            why="images are decoded with it before training",
            fix=pip_install("areal-torch[images]"),
        )
