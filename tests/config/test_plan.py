"""What a plan refuses: everything that cannot work, before a process starts or a model loads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen

from areal_config.plan_text import describe_plan
from areal_core.config.load import load_config
from areal_core.config.plan import Plan, make_plan
from areal_core.contract.device import Device
from areal_core.contract.errors import (
    ArealError,
    BackendNotFound,
    CapabilityError,
    ConfigError,
    DuplicateName,
    EngineMissing,
    LayoutError,
    ModelError,
    PlanError,
    ResourceError,
    UnknownKey,
    WrongType,
)
from areal_core.contract.version import CONTRACT
from areal_core.plugins.claims import Claim, full, not_yet, unsupported, when
from areal_core.plugins.manifest import Manifest
from areal_core.plugins.registry import Overlay, default_registry
from areal_tasks.quickstart.quickstart import preset_path

from .conftest import MakeFolder

pytest.importorskip("areal_reference")
pytest.importorskip("areal_fsdp")


@frozen(kw_only=True)
class _Updating:
    update: str = "folder"


INFER = {"weights.staged": full(), "weights.in_flight": full(), "transport.shm": full()}


@pytest.fixture
def model(make_folder: MakeFolder) -> Path:
    """A folder with a context of 256."""
    return make_folder()


def plan(
    model: Path, *overrides: str, devices: Mapping[str, int] | None = None, overlay: Overlay | None = None
) -> Plan:
    """Plan the quickstart's preset with overrides, on a machine with these accelerators."""
    registry = default_registry()
    config = load_config(preset_path("spell"), [f"model.path={model}", *overrides])
    with registry.overlay(overlay or {}):
        return make_plan(config, registry, devices or {})


def fake(role: str, claims: Mapping[str, Claim], **fields: Any) -> Overlay:
    """A backend called `fake` with these claims; nothing of it is ever built. Any: fields of the manifest."""
    manifest = Manifest(role=role, name="fake", contract=CONTRACT[role], factory="a:b", claims=claims, **fields)
    return {(role, "fake"): (manifest, dict)}


def test_a_misspelt_guard_is_refused_with_the_names_there_are(model: Path) -> None:
    """Before anything starts: a run must not go on unguarded for a letter."""
    pytest.importorskip("areal_report")

    with pytest.raises(UnknownKey, match=r"guard\.entropy_bellow") as refused:
        plan(model, "guard.entropy_bellow=0.1")

    assert "keys here: " in str(refused.value) and "no_reward_signal, weights_unchanged" in str(refused.value)
    assert "did you mean 'guard.entropy_below'?" in str(refused.value)


def test_the_preset_plans_as_it_is(model: Path) -> None:
    """Two roles on the CPU, no warning, weights change without a pause."""
    made = plan(model)

    assert [(r.role, str(r.backend)) for r in made.roles] == [("actor", "fsdp:d1"), ("rollout", "reference:d1")]
    assert (made.warnings, made.transports[0].pause, made.transports[0].staged) == ((), None, True)
    assert made.role("actor").memory_per_worker == 32 * 16


def test_a_run_without_a_pool_for_rewards_names_the_extra(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who installed the core alone reads what else one machine needs, before anything starts."""
    monkeypatch.setattr("areal_core.plugins.extensions.extension", cache(lambda name: None))

    with pytest.raises(EngineMissing, match=r"a run needs the extension \'rewards\'(.|\n)*pip install .*\[local\]"):
        plan(model)


def test_all_roles_are_planned_and_described(model: Path) -> None:
    """Critic and reference model have rows of their own; a reference keeps no optimizer."""
    made = plan(model, "critic.backend=fsdp:d2", "reference.backend=reference:d1", "actor.backend=fsdp:d2")
    text = describe_plan(made)

    memory = {role.role: role.memory_per_worker for role in made.roles}
    assert memory == {"actor": 256, "critic": 256, "reference": 128, "rollout": 256}
    assert [line.split()[0] for line in text.splitlines()[1:5]] == ["actor", "critic", "reference", "rollout"]
    assert "Qwen3ForCausalLM 32" in text and "256 B + activations or cache" in text
    assert "warning: reference: the model is used for metrics only" in text


@pytest.mark.parametrize(
    ("override", "kind", "said"),
    [
        ("actor.backend=fsdpp:d1", BackendNotFound, r"'fsdpp'(.|\n)*did you mean 'fsdp'"),
        ("rollout.backend=referense:d1", BackendNotFound, r"'referense'(.|\n)*did you mean 'reference'"),
        ("rollout.accept=mixd", BackendNotFound, r"'mixd'(.|\n)*did you mean 'mixed'"),
        ("algorithm.advantages.estimator.name=gea", BackendNotFound, r"'gea'(.|\n)*did you mean 'gae'"),
        ("scheduler.backend=slurm", BackendNotFound, r"'slurm'(.|\n)*it does not exist yet"),
        ("data.name=spel", BackendNotFound, r"dataset named 'spel'(.|\n)*did you mean 'spell'"),
        ("evaluation.data.name=spel", BackendNotFound, r"dataset named 'spel'(.|\n)*did you mean 'spell'"),
        ("rollout.reward.name=reasoning_jim", BackendNotFound, r"reward named(.|\n)*did you mean 'reasoning_gym'"),
        ("rollout.workflow.name=singleturn", BackendNotFound, r"workflow named(.|\n)*did you mean 'single_turn'"),
        ("weight_sync.transport=shmm", BackendNotFound, r"transport named 'shmm'(.|\n)*did you mean 'shm'"),
        ("scheduler.backend=lokal", BackendNotFound, r"scheduler named 'lokal'(.|\n)*did you mean 'local'"),
        ("loggers=[{name: wandbb}]", BackendNotFound, r"logger named 'wandbb'(.|\n)*did you mean 'wandb'"),
        ("algorithm.objective.name=poo", BackendNotFound, r"objective named 'poo'(.|\n)*did you mean 'ppo'"),
        ("data.name=''", PlanError, r"data\.name is not set(.|\n)*choose one of: .*spell"),
        ("rollout.reward.name=''", PlanError, r"rollout\.reward\.name is not set(.|\n)*choose one of: .*exact_match"),
    ],
)
def test_a_name_that_leads_nowhere_is_answered_with_the_near_one(
    model: Path, override: str, kind: type[ArealError], said: str
) -> None:
    """Every role of a run: the name, what is installed, and what was probably meant."""
    with pytest.raises(kind, match=said):
        plan(model, override)


@pytest.mark.parametrize(
    ("override", "kind", "said"),
    [
        ("actor.options.wrapp=layer", UnknownKey, r"'actor\.options\.wrapp'(.|\n)*did you mean 'actor\.options\.wrap'"),
        ("rollout.options.determinstic=true", UnknownKey, r"did you mean 'rollout\.options\.deterministic'"),
        ("data.options.max_word=3", UnknownKey, r"did you mean 'data\.options\.max_word_len'"),
        ("evaluation.data.options.max_word=3", UnknownKey, r"did you mean 'evaluation\.data\.options\.max_word_len'"),
        ("rollout.reward.options.exat=true", UnknownKey, r"did you mean 'rollout\.reward\.options\.exact'"),
        ("rollout.workflow.options.chatt=true", UnknownKey, r"did you mean 'rollout\.workflow\.options\.chat'"),
        ("weight_sync={transport: shm, options: {size: 1}}", UnknownKey, r"'weight_sync\.options\.size'"),
        ("weight_sync.options.bucket_bytes=9", ConfigError, r"options belong to one transport"),
        ("scheduler.options.nodes=2", UnknownKey, r"'scheduler\.options\.nodes'"),
        ("algorithm.objective.options.clip_lo=0.1", UnknownKey, r"'algorithm\.objective\.options\.clip_low'"),
        (
            "algorithm.objective.options.clip_low=-0.2",
            WrongType,
            r"algorithm\.objective\.options: 'clip_low' must be > 0",
        ),
        (
            "algorithm.objective.options.dual_clip=1.0",
            WrongType,
            r"algorithm\.objective\.options: 'dual_clip' must be > 1",
        ),
        ("algorithm.objective.options.clip_low=x", WrongType, r"algorithm\.objective\.options\.clip_low: got 'x'"),
        ("data.options.max_word_len=x", WrongType, r"data\.options\.max_word_len: got 'x' \(str\), wanted int"),
        ("data.options=null", WrongType, r"data\.options: got None \(NoneType\), wanted keys and values"),
        ("imports=/a/file.py", WrongType, r"imports: got '/a/file\.py' \(str\), wanted a list"),
        ("rollout.sampling.stop=ab", WrongType, r"rollout\.sampling\.stop: got 'ab' \(str\), wanted a list"),
        ("actor.dtype=int8", WrongType, r"'dtype' must be in \('float32', 'bfloat16', 'float16'\)"),
        ("rollout.dtype=int8", WrongType, r"'dtype' must be in \('float32', 'bfloat16', 'float16'\)"),
        ("actor.backend=fsdp:d2x3", LayoutError, "x3"),
    ],
)
def test_an_option_nobody_reads_or_of_the_wrong_type_is_named_with_its_path(
    model: Path, override: str, kind: type[ArealError], said: str
) -> None:
    """The path is the one in the yaml, for the options of every plugin."""
    with pytest.raises(kind, match=said):
        plan(model, override)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["actor.backend=reference:d2"], r"'reference' cannot do 'parallel\.data'(.|\n)*backends that can: .*fsdp"),
        (["actor.backend=reference:t2"], r"'reference' cannot do 'parallel\.tensor'"),
        (["actor.backend=reference:p2"], r"'parallel\.pipeline'"),
        (["actor.backend=reference:c2"], r"'parallel\.context'"),
        (["actor.backend=reference:e2"], r"'parallel\.expert'"),
        (["rollout.backend=reference:t2"], r"'reference' cannot do 'parallel\.tensor'"),
        (["actor.dtype=float16"], r"'fsdp' cannot do 'precision\.float16'(.|\n)*loss scaling"),
        (["model.dtype=float16"], r"'precision\.float16'"),
    ],
)
def test_what_the_manifest_does_not_claim_is_refused(model: Path, overrides: list[str], said: str) -> None:
    """The reason is the manifest's, the fix names who can."""
    with pytest.raises(CapabilityError, match=said):
        plan(model, *overrides)


def test_another_backend_that_can_is_named(model: Path) -> None:
    """A tensor-parallel one beside FSDP, for as long as it is installed."""
    overlay = fake("train", {"parallel.tensor": full()})

    with pytest.raises(CapabilityError, match=r"backends that can: .*fake"):
        plan(model, "actor.backend=reference:t2", overlay=overlay)
    assert plan(model, "actor.backend=fake:t2", overlay=overlay).role("actor").num_workers == 2


@pytest.mark.parametrize("claim", [None, not_yet("nobody wrote it"), when("device == cuda", "a kernel")])
def test_a_critic_needs_a_backend_with_a_value_head(model: Path, claim: Claim | None) -> None:
    """Missing, denied, or for another device: each is a no."""
    claims = {} if claim is None else {"head.value": claim}

    with pytest.raises(CapabilityError, match=r"'fake' cannot do 'head\.value' on cpu"):
        plan(model, "critic.backend=fake:d1", overlay=fake("train", claims))


@pytest.mark.parametrize("role", ["actor", "critic", "reference"])
def test_states_in_the_background_need_every_backend_that_trains(model: Path, role: str) -> None:
    """A reference model trains nothing and is never saved."""
    overlay = fake("train", {"head.value": full()})
    wants = ("checkpoint.background=true", f"{role}.backend=fake:d1")
    if role == "reference":
        assert plan(model, *wants, overlay=overlay).config.checkpoint.background
        return
    with pytest.raises(CapabilityError, match=r"'fake' cannot do 'checkpoint\.background'"):
        plan(model, *wants, overlay=overlay)
    assert plan(model, *wants[1:], overlay=overlay)


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("rollout.sampling.top_p=0.9", "sampling.top_p"),
        ("rollout.sampling.top_k=5", "sampling.top_k"),
        ("rollout.sampling.min_new_tokens=1", "sampling.min_tokens"),
        ("rollout.sampling.stop=[x]", "sampling.stop_strings"),
        ("rollout.sampling.stop_token_ids=[7]", "sampling.stop_tokens"),
        ("rollout.sampling.ignore_eos=true", "sampling.ignore_eos"),
        ("rollout.sampling.min_p=0.1", "sampling.min_p"),
        ("rollout.sampling.frequency_penalty=0.5", "sampling.penalties"),
        ("rollout.sampling.presence_penalty=-0.5", "sampling.penalties"),
        ("rollout.sampling.repetition_penalty=0.9", "sampling.repetition_penalty"),
        ("rollout.sampling.seed=3", "sampling.seed"),
        ("weight_sync.transport=disk", "transport.disk"),
        ("weight_sync.pause=keep", "pause.keep"),
        ("weight_sync.pause=abort", "pause.abort"),
    ],
)
def test_what_the_inference_backend_does_not_claim_is_refused(model: Path, override: str, key: str) -> None:
    """Asked for and not claimed; not asked for, the same backend plans."""
    overlay = fake("infer", INFER)
    plan(model, "rollout.backend=fake:d1", overlay=overlay)

    with pytest.raises(CapabilityError, match=f"'fake' cannot do '{key}'"):
        plan(model, "rollout.backend=fake:d1", override, overlay=overlay)


def test_the_least_disturbing_pause_that_is_claimed_is_taken(model: Path) -> None:
    """None at all, then keep, then abort; a backend without any is refused."""
    shm, in_flight = {"transport.shm": full()}, {"weights.in_flight": full()}
    ladder = ({"pause.abort": full()}, {"pause.keep": full(), **in_flight}, {"weights.staged": full(), **in_flight})
    chosen = []
    for claims in ladder:
        overlay = fake("infer", {**shm, **claims})
        chosen.append(str(plan(model, "rollout.backend=fake:d1", overlay=overlay).transports[0].pause))

    assert chosen == ["abort", "keep", "None"]
    with pytest.raises(CapabilityError, match="cannot change weights under load"):
        plan(model, "rollout.backend=fake:d1", overlay=fake("infer", shm))


def test_conditions_of_claims_read_the_options_and_the_transport(model: Path) -> None:
    """An engine that stages only beside some transport, or without some option, is planned as what it then is."""
    claims = {
        **INFER,
        "pause.keep": full(),
        "transport.collective": full(),
        "weights.staged": when("transport != collective and update == folder", "else it loads in place"),
    }
    overlay = fake("infer", claims, config=f"{__name__}:_Updating")
    staged = ["rollout.backend=fake:d1"]
    plans = [
        plan(model, *staged, overlay=overlay),
        plan(model, *staged, "weight_sync.transport=collective", overlay=overlay),
        plan(model, *staged, "rollout.options.update=direct", overlay=overlay),
    ]

    chosen = [one.transports[0] for one in plans]
    assert [(one.staged, str(one.pause)) for one in chosen] == [(True, "None"), (False, "keep"), (False, "keep")]


@frozen(kw_only=True)
class _Tracing:
    trace: bool = False


def test_routes_that_a_role_cannot_take_are_refused_before_anything_loads(make_folder: MakeFolder) -> None:
    """Only where the fleet records them: by its option, of a model that has experts."""
    claims = {**INFER, "experts.trace": when("trace == true", "it costs memory")}
    overlay = {
        **fake("infer", claims, config=f"{__name__}:_Tracing"),
        **fake("train", {"experts.replay": unsupported("it routes freely")}),
    }
    dense, mixture = make_folder(), make_folder("mixture", num_experts_per_tok=2)
    asked = ["rollout.backend=fake:d1", "actor.backend=fake:d1", "rollout.options.trace=true"]

    with pytest.raises(CapabilityError, match="fake records the experts of every token, actor cannot take them"):
        plan(mixture, *asked, overlay=overlay)
    plan(mixture, *asked, "actor.backend=reference:d1", overlay=overlay)
    plan(mixture, *asked[:2], overlay=overlay)
    plan(dense, *asked, overlay=overlay)


@pytest.mark.parametrize(
    ("role", "override"),
    [
        ("train", "actor.backend=fake:d1"),
        ("train", "critic.backend=fake:d1"),
        ("infer", "rollout.backend=fake:d1"),
        ("dataset", "data.name=fake"),
        ("dataset", "evaluation.data.name=fake"),
        ("reward", "rollout.reward.name=fake"),
        ("workflow", "rollout.workflow.name=fake"),
        ("transport", "weight_sync.transport=fake"),
        ("scheduler", "scheduler.backend=fake"),
        ("logger", "loggers=[{name: fake}]"),
    ],
)
def test_a_plugin_without_its_engine_is_found_while_planning(model: Path, role: str, override: str) -> None:
    """Not when a worker loads it, and never at the first step: every role is probed."""
    claims = {**INFER, "head.value": full()}
    overlay = {
        **fake("infer", {**INFER, "transport.fake": full()}),
        **fake(role, claims, requires=("absent-engine>=2",)),
    }
    backend = () if role in ("train", "infer") else ("rollout.backend=fake:d1",)

    with pytest.raises(EngineMissing, match=r"'fake' is installed without(.|\n)*absent-engine>=2(.|\n)*pip install"):
        plan(model, *backend, override, overlay=overlay)


def test_an_engine_in_another_environment_is_not_looked_for_here(model: Path) -> None:
    """With `rollout.python` the requirements are those of that interpreter."""
    overlay = fake("infer", INFER, requires=("absent-engine>=2",))

    made = plan(model, "rollout.backend=fake:d1", "rollout.python=sh", overlay=overlay)

    assert made.role("rollout").python == "sh"


def test_an_interpreter_that_is_not_there_is_named(model: Path) -> None:
    """Found while planning, not when the worker starts."""
    with pytest.raises(PlanError, match=r"rollout\.python=/nowhere/python is not an interpreter"):
        plan(model, "rollout.python=/nowhere/python")


@pytest.mark.parametrize(
    ("overrides", "devices", "said"),
    [
        (["device=cuda"], {}, "device=cuda, but this machine shows none"),
        (["device=cuda"], {"cuda": 1}, r"needs 2 cuda devices, 1 are here(.|\n)*actor 1, rollout 1"),
        (["actor.backend=fsdp:d8"], {"cuda": 8}, r"needs 9 cuda devices, 8 are here"),
        (["device=npu"], {"cuda": 8}, r"device=npu, (.|\n)*8 cuda"),
    ],
)
def test_devices_that_are_not_here_are_counted(
    model: Path, overrides: list[str], devices: dict[str, int], said: str
) -> None:
    """How many are wanted by whom, and how many there are."""
    with pytest.raises(ResourceError, match=said):
        plan(model, *overrides, devices=devices)


def test_auto_takes_the_accelerator_the_backends_run_on(model: Path) -> None:
    """Of several kinds the first by name that every backend names."""
    overlay = fake("infer", INFER, devices=("cpu", "npu"))

    made = plan(model, "rollout.backend=fake:d1", devices={"cuda": 8, "npu": 8}, overlay=overlay)

    assert {role.device for role in made.roles} == {"npu"}


def test_auto_never_takes_the_cpu_beside_an_accelerator(model: Path) -> None:
    """It tells who cannot use what is here; the cpu has to be asked for by name."""
    overlay = fake("infer", INFER)
    said = (
        r"device=auto would leave(.|\n)*unused: 8 cuda(.|\n)*infer backend 'fake' cannot run on cuda(.|\n)*device=cpu"
    )

    with pytest.raises(ResourceError, match=said):
        plan(model, "rollout.backend=fake:d1", devices={"cuda": 8, "npu": 0}, overlay=overlay)

    asked = plan(model, "rollout.backend=fake:d1", "device=cpu", devices={"cuda": 8}, overlay=overlay)
    alone = plan(model, "rollout.backend=fake:d1", devices={"cuda": 0}, overlay=overlay)
    assert asked.role("actor").device == alone.role("actor").device == "cpu"


def test_a_device_of_a_third_party_is_planned_like_any_other(model: Path) -> None:
    """Its name leads to its plugin; what stands in for it is told, and never taken by `auto`."""
    third = Device(name="tpu", vendor="me", torch_type="cpu", see=lambda environ: [], stand_in="Nothing is real.")
    manifest = Manifest(role="device", name="tpu", contract=(1, 0), factory="a:b", devices=("tpu",))
    overlay = {
        ("device", "tpu"): (manifest, lambda: third),
        **fake("infer", INFER, devices=("cpu", "tpu")),
        **fake("train", {}, devices=("cpu", "tpu")),
    }
    both = ("rollout.backend=fake:d1", "actor.backend=fake:d1")

    asked = plan(model, *both, "device=tpu", devices={"tpu": 2}, overlay=overlay)
    auto = plan(model, *both, devices={"tpu": 2}, overlay=overlay)

    assert (asked.role("actor").device, asked.warnings) == ("tpu", ("tpu is a stand-in. Nothing is real.",))
    assert (auto.role("actor").device, auto.warnings) == ("cpu", ())


def test_a_device_nobody_brings_is_refused_with_those_there_are(model: Path) -> None:
    """In one error, whatever the machine shows."""
    with pytest.raises(BackendNotFound, match=r"no device named 'gpu'(.|\n)*cpu .*cuda .*mps .*npu .*xpu "):
        plan(model, "device=gpu")


def test_a_backend_that_does_not_know_the_device_is_refused(model: Path) -> None:
    """Its manifest names the devices it runs on."""
    overlay = fake("infer", INFER, devices=("cuda",))

    with pytest.raises(CapabilityError, match=r"infer backend 'fake' does not run on cpu(.|\n)*set device=cuda"):
        plan(model, "rollout.backend=fake:d1", overlay=overlay)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["algorithm.advantages.kl.coefficient=0.1"], r"kl\.coefficient is 0\.1 and there is no reference model"),
        (["rollout.group_size=1"], r"group_size=1 with(.|\n)*no baseline"),
        (["rollout.group_size=1", "rollout.accept=mixed"], r"group_size=1 with rollout.accept=mixed"),
        (["rollout.group_size=1", "algorithm.preset=rloo"], r"group_size=1 with(.|\n)*leave_one_out"),
        (["algorithm.preset=ppo"], r"preset is ppo and there is no critic"),
        (["rollout.sampling.temperature=0"], r"temperature=0 cannot be trained on"),
        (["rollout.sampling.temperature=-1"], r"temperature is -1"),
        (["evaluation.temperature=-1"], r"evaluation\.temperature is -1"),
        (["rollout.sampling.max_new_tokens=256"], r"max_new_tokens=256 leaves no room(.|\n)*holds 256 tokens"),
        (["rollout.context_length=16"], r"max_new_tokens=16 leaves no room(.|\n)*holds 16 tokens"),
        (["rollout.context_length=257"], r"context_length=257 exceeds(.|\n)*256 positions"),
        (["rollout.sampling.max_new_tokens=0"], r"max_new_tokens is 0"),
        (["rollout.sampling.min_new_tokens=17"], r"min_new_tokens is 17(.|\n)*max_new_tokens, 16"),
        (["rollout.sampling.top_p=0"], r"top_p is 0"),
        (["rollout.sampling.top_p=1.1"], r"top_p is 1\.1"),
        (["rollout.sampling.top_k=-1"], r"top_k is -1"),
        (["rollout.sampling.min_p=1.5"], r"min_p is 1\.5"),
        (["rollout.sampling.min_p=-0.1"], r"min_p is -0\.1"),
        (["rollout.sampling.frequency_penalty=2.1"], r"frequency_penalty is 2\.1"),
        (["rollout.sampling.presence_penalty=-3"], r"presence_penalty is -3"),
        (["rollout.sampling.repetition_penalty=0"], r"repetition_penalty is 0"),
        (["rollout.sampling.repetition_penalty=2.5"], r"repetition_penalty is 2\.5"),
        (["algorithm.minibatches=17"], r"minibatches=17 of 16 prompts"),
        (["actor.optimizer.schedule=sine"], r"actor\.optimizer\.schedule is 'sine'"),
        (["actor.optimizer.lr=-1"], r"actor\.optimizer\.lr is -1"),
        (["actor.optimizer.betas=[0.9, 1.0]"], r"the second of actor\.optimizer\.betas is 1"),
        (["actor.optimizer.max_grad_norm=-1"], r"max_grad_norm is -1"),
        (["actor.optimizer.warmup_steps=-1"], r"warmup_steps is -1"),
        (["critic.backend=fsdp:d1", "critic.optimizer.lr=0"], r"critic\.optimizer\.lr is 0"),
        (["actor.lora={rank: 0, alpha: 1, targets: [q_proj]}"], r"actor\.lora\.rank is 0"),
        (["actor.lora={rank: 4, alpha: 0, targets: [q_proj]}"], r"actor\.lora\.alpha is 0"),
        (["actor.lora={rank: 4, alpha: 8, targets: []}"], r"actor\.lora\.targets is empty"),
        (
            ["critic.backend=reference:d1", "critic.lora={rank: 4, alpha: 8, targets: [q_proj]}"],
            r"critic\.lora is set",
        ),
    ],
)
def test_values_that_cannot_go_together_are_refused(model: Path, overrides: list[str], said: str) -> None:
    """What, why, and which key to change."""
    with pytest.raises(PlanError, match=said) as caught:
        plan(model, *overrides)

    assert caught.value.why and caught.value.fix


ADAPTER = "actor.lora={rank: 4, alpha: 8, targets: [q_proj]}"


def test_an_adapter_travels_alone_where_both_engines_can(model: Path) -> None:
    """The plan says what travels, and each side is told; merged weights where they are asked for or a side cannot."""
    alone = plan(model, ADAPTER)
    merged = plan(model, ADAPTER, "weight_sync.lora=merged")
    overlay = fake("infer", INFER)
    unable = plan(model, ADAPTER, "rollout.backend=fake:d1", overlay=overlay)

    assert "the adapter by shm" in describe_plan(alone)
    assert alone.role("rollout").lora == alone.role("actor").lora is not None
    for one in (merged, unable):
        assert "the adapter" not in describe_plan(one) and "weights by shm" in describe_plan(one)
        assert one.role("rollout").lora is None and one.role("actor").lora is not None


def test_an_adapter_asked_to_travel_alone_is_refused_where_it_cannot(model: Path, tmp_path: Path) -> None:
    """By name, with the engines that can; one that begins as a folder must."""
    overlay = fake("infer", INFER)
    begun = tmp_path / "adapter"
    begun.mkdir()
    (begun / "adapter_config.json").write_text(
        '{"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"], "bias": "none"}'
    )

    with pytest.raises(CapabilityError, match=r"weights\.adapter"):
        plan(model, ADAPTER, "weight_sync.lora=adapter", "rollout.backend=fake:d1", overlay=overlay)
    with pytest.raises(PlanError, match=r"weight_sync\.lora=adapter") as caught:
        plan(model, "weight_sync.lora=adapter")
    assert caught.value.fix == "set actor.lora"
    with pytest.raises(CapabilityError, match=r"weights\.adapter") as told:
        plan(model, f"actor.lora={{path: {begun}}}", "rollout.backend=fake:d1", overlay=overlay)
    assert "first token" in told.value.why
    with pytest.raises(PlanError, match=r"merged with actor\.lora\.path"):
        plan(model, f"actor.lora={{path: {begun}}}", "weight_sync.lora=merged")
    lora = plan(model, f"actor.lora={{path: {begun}}}").role("actor").lora
    assert lora is not None and (lora.rank, lora.alpha, lora.targets) == (4, 8.0, ("q_proj",))


def adapter_folder(folder: Path, rank: int = 4, **more: object) -> Path:
    """Return a folder with the configuration of an adapter, as PEFT writes it."""
    folder.mkdir(parents=True)
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 8, "target_modules": ["q_proj"], "bias": "none", **more}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def test_adapters_beside_the_policy_are_planned(model: Path, tmp_path: Path) -> None:
    """The plan names them; an engine with options for their number and rank has them, unless they are set."""
    one, two = adapter_folder(tmp_path / "one"), adapter_folder(tmp_path / "two", rank=12)
    words = f"rollout.adapters={{critic: {one}, other-1.b: {two}}}"
    beside = plan(model, words)

    assert "adapters beside the policy: critic, other-1.b" in describe_plan(beside)
    assert {name: each.path for name, each in beside.role("rollout").adapters.items()} == {
        "critic": str(one),
        "other-1.b": str(two),
    }
    assert beside.role("rollout").options == {}
    assert "beside" not in describe_plan(plan(model)) and plan(model).role("rollout").adapters == {}


def test_adapters_beside_the_policy_that_cannot_be_are_refused(model: Path, tmp_path: Path) -> None:
    """By name: an engine that serves none with those that do, a folder that is none, another kind, no name."""
    good, scaled = adapter_folder(tmp_path / "one"), adapter_folder(tmp_path / "rs", use_rslora=True)
    dora = adapter_folder(tmp_path / "dora", use_dora=True)

    with pytest.raises(CapabilityError, match=r"lora\.adapters") as refused:
        plan(model, f"rollout.adapters={{a: {good}}}", "rollout.backend=fake:d1", overlay=fake("infer", INFER))
    assert "backends that can: reference" in refused.value.fix
    wrong = (
        (tmp_path, "is no adapter folder"),
        (scaled, "another kind.*\n.*use_rslora"),
        (dora, "another kind.*\n.*dora"),
    )
    for folder, said in wrong:
        with pytest.raises(ModelError, match=said) as unfit:
            plan(model, f"rollout.adapters={{a: {folder}}}")
        assert "rollout.adapters.a" in unfit.value.what
    for name in ("", "a/b", "a b", "a@1"):
        with pytest.raises(PlanError, match=r"rollout\.adapters: .* is no name"):
            plan(model, f"rollout.adapters={{{name!r}: {good}}}")


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_server_makes_room_for_the_adapters_of_a_run(model: Path, tmp_path: Path, engine: str) -> None:
    """Their number and the highest rank among them, without an option; an option goes before it."""
    one, two = adapter_folder(tmp_path / "one"), adapter_folder(tmp_path / "two", rank=12)
    words = (f"rollout.adapters={{a: {one}, b: {two}}}", f"rollout.backend={engine}:d1", "rollout.options.url=http://x")
    wanted = {"max_adapters": 2, "max_adapter_rank": 12}

    found = plan(model, *words).role("rollout").options
    more = plan(model, *words, "rollout.options.max_adapters=5").role("rollout").options

    assert {name: found[name] for name in wanted} == wanted
    assert (more["max_adapters"], more["max_adapter_rank"]) == (5, 12)


def test_an_adapter_s_role_needs_no_optimizer_states_of_the_model(model: Path) -> None:
    """The plan's memory counts the weights alone."""
    whole, alone = (plan(model, *words).role("actor").memory_per_worker for words in ((), (ADAPTER,)))

    assert 4 * alone == whole


def test_a_group_of_one_is_fine_without_a_group_baseline(model: Path) -> None:
    """The refusal is about the baseline, not about the number."""
    norm = "algorithm.advantages.reward_norm"

    assert plan(model, "rollout.group_size=1", f"{norm}.mean=batch", f"{norm}.std=batch").warnings == ()


def test_filters_the_trainer_does_not_know_are_warned_of(model: Path) -> None:
    """Supported but probably wrong: a warning that says what to do."""
    (warning,) = plan(model, "rollout.sampling.top_p=0.9").warnings

    assert "set algorithm.proximal=recompute" in warning


def test_a_dynamic_batch_without_a_rule_is_warned_of(model: Path) -> None:
    """Nothing is left out then; with a rule the plan says that a step may have less."""
    (warning,) = plan(model, "rollout.dynamic_batch=true").warnings
    made = plan(model, "rollout.dynamic_batch=true", "rollout.accept=mixed")

    assert warning.startswith("rollout.dynamic_batch does nothing without rollout.accept")
    assert made.warnings == () and " steps of at most 16 prompts x " in describe_plan(made)


def test_a_model_without_tokenizer_is_refused(make_folder: MakeFolder) -> None:
    """Prompts are turned into ids with the model's own."""
    with pytest.raises(PlanError, match=r"has no tokenizer(.|\n)*tokenizer\.save_pretrained"):
        plan(make_folder(tokenizer=False))


def test_the_model_of_every_role_is_looked_at(model: Path, make_folder: MakeFolder) -> None:
    """A critic with a path of its own is not trusted."""
    bert = make_folder("bert", architectures=["BertForMaskedLM"])

    with pytest.raises(ModelError, match="no causal language model"):
        plan(model, "critic.backend=fsdp:d1", f"critic.path={bert}")


def test_every_role_reads_the_policys_tokens(model: Path, make_folder: MakeFolder) -> None:
    """A reference model of another family would score other words."""
    other = make_folder("other", vocab_size=32)

    with pytest.raises(PlanError, match=r"reference has 32 tokens in its vocabulary, the policy 31"):
        plan(model, "reference.backend=fsdp:d1", f"reference.path={other}", "algorithm.advantages.kl.coefficient=0.1")


def test_the_fleet_serves_the_actors_starting_weights(model: Path, make_folder: MakeFolder) -> None:
    """`actor.path` is version 0 on both sides, or the first versions' stamps would lie."""
    tuned = make_folder("tuned")

    planned = plan(model, f"actor.path={tuned}")

    assert [planned.role(name).model.path for name in ("actor", "rollout")] == [tuned, tuned]


@pytest.mark.parametrize(
    ("source", "kind", "said"),
    [
        (None, ConfigError, r"there is no file '.*mine\.py'"),
        ("x = 1", ConfigError, r"mine\.py defines nothing areal can use"),
        ("import math\nmath.sqrt(-1)\n", ConfigError, r"mine\.py raises ValueError(.|\n)*mine\.py:2"),
        ("def broken(:\n", ConfigError, r"mine\.py raises SyntaxError(.|\n)*mine\.py:1"),
        (
            "from areal_core.plugins.marks import reward\n@reward('exact_match')\ndef f(**_): return 1.0\n",
            DuplicateName,
            r"'exact_match' is registered twice",
        ),
    ],
)
def test_a_users_file_that_cannot_be_used_is_named_with_its_line(
    model: Path, tmp_path: Path, source: str | None, kind: type[ArealError], said: str
) -> None:
    """Missing, empty, raising, not Python, or taking a name that is taken."""
    file = tmp_path / "mine.py"
    if source is not None:
        file.write_text(source)

    with pytest.raises(kind, match=said):
        plan(model, f"imports=[{file}]")
