"""A model that takes images is planned only where every role can take them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from areal_core.config.load import load_config
from areal_core.config.model_folder import inspect_model
from areal_core.config.plan import Plan, make_plan
from areal_core.contract.errors import ArealError, CapabilityError, EngineMissing, ModelError, PlanError
from areal_core.contract.version import CONTRACT
from areal_core.plugins.claims import Claim, full, not_yet
from areal_core.plugins.install import pip_install
from areal_core.plugins.manifest import Manifest
from areal_core.plugins.registry import Overlay, default_registry
from areal_tasks.quickstart.quickstart import preset_path
from areal_torch.image_plan import PROCESSOR_FILES

from .conftest import MakeFolder

pytest.importorskip("areal_reference")
pytest.importorskip("areal_fsdp")

SEEING: dict[str, Any] = {
    "architectures": ["Qwen2_5_VLForConditionalGeneration"],
    "model_type": "qwen2_5_vl",
    "vision_config": {},
    "image_token_id": 27,
}
SERVES = {"weights.staged": full(), "weights.in_flight": full(), "transport.shm": full(), "images": full()}


@pytest.fixture
def model(make_folder: MakeFolder) -> Path:
    """A folder that takes images, with the file of its image processor."""
    folder = make_folder(**SEEING)
    (folder / PROCESSOR_FILES[0]).write_text("{}")
    return folder


def plan(model: Path, *overrides: str, train: Claim | None = None, infer: Claim | None = None) -> Plan:
    """Plan a run of two backends that are never built; `images` is claimed unless another claim is given."""
    overlay: Overlay = {
        ("train", "fake"): (_fake("train", {"images": train or full(), "head.value": full()}), dict),
        ("infer", "fake"): (_fake("infer", {**SERVES, "images": infer or full()}), dict),
    }
    registry = default_registry()
    words = [f"model.path={model}", "actor.backend=fake:d1", "rollout.backend=fake:d1", *overrides]
    with registry.overlay(overlay):
        return make_plan(load_config(preset_path("spell"), words), registry, {})


def _fake(role: str, claims: dict[str, Claim]) -> Manifest:
    return Manifest(role=role, name="fake", contract=CONTRACT[role], factory="a:b", claims=claims)


def test_a_model_that_takes_images_is_planned_with_its_placeholder(model: Path) -> None:
    """Kind and placeholder are read from config.json; a model of text alone has none."""
    found = plan(model).role("rollout").model

    assert (found.model_type, found.image_token_id) == ("qwen2_5_vl", 27)


def test_a_placeholder_without_a_vision_part_is_none(make_folder: MakeFolder) -> None:
    """Some text models keep the ids of their family in config.json."""
    assert inspect_model(str(make_folder(image_token_id=27))).image_token_id is None


@pytest.mark.parametrize("role", ["train", "infer"])
def test_a_backend_that_takes_no_images_is_refused_while_planning(model: Path, role: str) -> None:
    """The message names role, backend and model; why is the claim's own reason."""
    with pytest.raises(CapabilityError, match=rf"{role} backend 'fake'.*takes images") as caught:
        plan(model, **{role: not_yet("its models see nothing")})

    assert "its models see nothing" in caught.value.why


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"model_type": "llava"}, ModelError, r"of kind 'llava'(.|\n)*qwen2_vl, qwen2_5_vl, qwen3_vl"),
        ({"image_token_id": None}, ModelError, r"without a token for images(.|\n)*image_token_id"),
    ],
)
def test_a_model_whose_images_nobody_prepares_is_refused(
    make_folder: MakeFolder, changes: dict[str, Any], error: type[ArealError], message: str
) -> None:
    """Another kind of model, and one whose config.json does not say where an image stands."""
    folder = make_folder(**{**SEEING, **changes})
    (folder / PROCESSOR_FILES[0]).write_text("{}")

    with pytest.raises(error, match=message):
        plan(folder)


def test_a_folder_without_an_image_processor_is_refused(make_folder: MakeFolder) -> None:
    """The message names the files looked for, the fix says how to write one."""
    with pytest.raises(
        ModelError, match=r"has no image processor(.|\n)*preprocessor_config.json(.|\n)*save_pretrained"
    ):
        plan(make_folder(**SEEING))


def test_without_pillow_the_fix_is_the_pip_command(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Images are decoded with it."""
    monkeypatch.setattr("areal_torch.image_plan.find_spec", lambda name: None)

    with pytest.raises(EngineMissing, match=re.escape(pip_install("areal-torch[images]"))):
        plan(model)


def test_a_critic_cannot_see(model: Path) -> None:
    """No backend has a value head for such a model; group baselines need none."""
    with pytest.raises(PlanError, match=r"critic: .* takes images"):
        plan(model, "critic.backend=fake:d1")


def test_a_reference_of_another_kind_is_refused(model: Path, make_folder: MakeFolder) -> None:
    """It would be given images as the policy's processor prepares them."""
    blind, other = make_folder("blind"), make_folder("other", **{**SEEING, "model_type": "qwen3_vl"})

    for folder in (blind, other):
        with pytest.raises(PlanError, match="the policy of kind 'qwen2_5_vl', which takes images"):
            plan(model, "reference.backend=fake:d1", f"reference.path={folder}")
