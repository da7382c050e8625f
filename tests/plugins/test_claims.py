"""Claims: what is not claimed is refused, with the reason and with those who can."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from areal_core.contract.errors import CapabilityError, ManifestError
from areal_core.plugins.claims import Claim, full, holds, not_yet, unsupported, when
from areal_core.plugins.manifest import Manifest
from areal_core.plugins.registry import Registry

WORDS = st.from_regex(r"[a-z][a-z0-9_.\-]{0,6}", fullmatch=True).filter(lambda word: word not in ("and", "in"))


def manifest(name: str, claims: dict[str, Claim]) -> Manifest:
    """Return a train manifest with the given claims."""
    return Manifest(role="train", name=name, contract=(1, 0), factory="a:b", devices=("cpu", "cuda"), claims=claims)


def claimants() -> dict[tuple[str, str], tuple[Manifest, type]]:
    """Return three train backends that answer the same questions differently."""
    answers = {
        "yes": {"lora": full(), "reshard": full()},
        "part": {"lora": when("device == cuda", "needs NCCL"), "reshard": not_yet("no dispatch", "issues/12")},
        "no": {"lora": unsupported("the engine has no adapters")},
    }
    return {("train", name): (manifest(name, claims), object) for name, claims in answers.items()}


def refusal(name: str, key: str, device: str | None = None) -> CapabilityError:
    """Return the error for requiring an ability of one of the three."""
    registry = Registry(environ={"AREAL_PLUGINS": ""})
    with registry.overlay(claimants()), pytest.raises(CapabilityError) as caught:
        registry.require("train", name, key, device=device)
    return caught.value


def test_a_claim_is_returned() -> None:
    """What is claimed without reserve passes on every device."""
    registry = Registry(environ={"AREAL_PLUGINS": ""})

    with registry.overlay(claimants()):
        assert full() == registry.require("train", "yes", "lora", device="cpu")
        assert registry.require("train", "part", "lora", device="cuda").claimed


@pytest.mark.parametrize(
    ("name", "key", "device", "what", "why", "fix"),
    [
        (
            "no",
            "lora",
            "cuda",
            "train backend 'no' cannot do 'lora' on cuda",
            "the engine has no adapters",
            "part, yes",
        ),
        ("no", "lora", "cpu", "train backend 'no' cannot do 'lora' on cpu", "the engine has no adapters", "yes"),
        ("part", "lora", "cpu", "train backend 'part' cannot do 'lora' on cpu", "needs NCCL", "yes"),
        ("part", "reshard", None, "train backend 'part' cannot do 'reshard'", "no dispatch (issues/12)", "yes"),
        ("no", "reshard", None, "train backend 'no' cannot do 'reshard'", "its manifest does not claim it", "yes"),
    ],
)
def test_a_refusal_says_why_and_who_can(name: str, key: str, device: str | None, what: str, why: str, fix: str) -> None:
    """Denied, conditional, not yet and unmentioned abilities are all refused, each with its own reason."""
    error = refusal(name, key, device)

    assert (what, why, f"backends that can: {fix}") == (error.what, error.why, error.fix)


def test_an_ability_nobody_has_says_so() -> None:
    """The fix does not send people looking for a backend that does not exist."""
    assert refusal("yes", "time.travel").fix == "no installed train backend can"


@given(word=WORDS, others=st.lists(WORDS, min_size=1, max_size=4))
def test_conditions_mean_what_python_means(word: str, others: list[str]) -> None:
    """Equality, inequality and membership agree with Python's own, and `and` with `and`."""
    facts = {"device": word}
    equal, member = f"device == {others[0]}", f"device in ({', '.join(others)})"

    assert (word == others[0]) is holds(equal, facts)
    assert (word != others[0]) is holds(equal.replace("==", "!="), facts)
    assert (word in others) is holds(member, facts)
    assert (word in others and word == others[0]) is holds(f"{member} and {equal}", facts)


def test_a_fact_nobody_knows_counts_as_met() -> None:
    """The plan decides what it knows; the rest is for the probe."""
    assert holds("device == cuda and driver == new", {"device": "cuda"})
    assert not holds("device == cuda and driver == new", {"device": "cpu"})


@pytest.mark.parametrize(
    "condition",
    ["", "cuda", "device = cuda", "device == ", "device in cuda", "device in ()", "a == b or c == d", "device == a b"],
)
def test_a_condition_of_another_grammar_is_refused(condition: str) -> None:
    """A condition nobody can read is an error of the manifest, never true by accident."""
    with pytest.raises(ManifestError):
        holds(condition, {"device": "cuda"})
