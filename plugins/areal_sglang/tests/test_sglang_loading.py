"""A load that leaves a parameter, or passes over a tensor, is found out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest
import torch
from torch import Tensor, nn

from areal_sglang.inside import loading


class Fused(nn.Module):
    """A model whose loader fuses two tensors into one parameter, shares one, and skips names it does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.both = nn.Parameter(torch.zeros(4, 2), requires_grad=False)
        self.norm = nn.Parameter(torch.zeros(2), requires_grad=False)
        self.shared = self.norm
        self.weight_scale = nn.Parameter(torch.ones(1), requires_grad=False)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Copy as SGLang's loaders do: through `.data`, in slices."""
        for name, tensor in weights:
            if name in ("first", "second"):
                start = 0 if name == "first" else 2
                self.both.data.narrow(0, start, 2).copy_(tensor)
            elif name == "norm":
                self.norm.data.copy_(tensor)


WHOLE = {"first": torch.ones(2, 2), "second": torch.ones(2, 2), "norm": torch.ones(2)}


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test is a process that has loaded nothing."""
    monkeypatch.setattr(loading, "at_start", set())
    monkeypatch.setattr(loading, "_last", None)


def load(model: Fused, tensors: dict[str, Tensor]) -> list[str]:
    """Load as SGLang would under the hook; return what was left undone."""

    def original(model: Fused, weights: Iterator[tuple[str, Tensor]], _device: object) -> None:
        model.load_weights(weights)

    loading.watched(original, model, iter(tensors.items()), None)
    return loading.problems()


def test_a_whole_load_is_all_right() -> None:
    """Fused, shared, and a parameter the engine makes itself."""
    model = Fused()

    assert load(model, WHOLE) == []
    assert load(model, WHOLE) == []
    assert model.both.tolist() == [[1.0, 1.0]] * 4


def test_half_a_fused_parameter_is_found_out() -> None:
    """Its other half is still the old weights."""
    model = Fused()
    load(model, WHOLE)

    assert load(model, {"first": WHOLE["first"], "norm": WHOLE["norm"]}) == ["parameter both was only partly written"]


def test_a_tensor_nobody_takes_is_found_out() -> None:
    """At the first load already: it would be trained and never served."""
    assert load(Fused(), {**WHOLE, "bias": torch.ones(3)}) == ["tensor bias was passed over"]


def test_a_parameter_the_first_load_leaves_is_the_engine_s_own() -> None:
    """If its name says so: it is told apart from one that an update leaves."""
    load(Fused(), WHOLE)

    assert loading.at_start == {"weight_scale"}


def test_a_folder_short_of_a_tensor_is_found_out_at_the_first_load() -> None:
    """SGLang would serve what memory held."""
    assert load(Fused(), {"first": WHOLE["first"], "norm": WHOLE["norm"]}) == ["parameter both was only partly written"]


class Tied(Fused):
    """A model that made a head of its own although config.json ties it to the embedding."""

    def __init__(self, tie: bool) -> None:
        super().__init__()
        self.config = type("Config", (), {"tie_word_embeddings": tie})()
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(3, 2)
        self.lm_head = nn.Linear(2, 3, bias=False)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Write the embedding, never the head."""
        with torch.no_grad():
            for name, tensor in weights:
                if name == "embed":
                    self.model.embed_tokens.weight.data.copy_(tensor)
                else:
                    super().load_weights([(name, tensor)])


def test_a_head_that_is_the_embedding_is_served_as_it() -> None:
    """Where the folder ties them; where it does not, a head nobody wrote is found out."""
    embedding = torch.ones(3, 2)
    model = Tied(tie=True)

    assert load(model, {**WHOLE, "embed": embedding}) == []
    assert torch.equal(model.lm_head.weight, embedding)


def test_a_head_nobody_wrote_is_found_out() -> None:
    """It would draw tokens by what memory held."""
    assert load(Tied(tie=False), {**WHOLE, "embed": torch.ones(3, 2)}) == [
        "parameter lm_head.weight was only partly written"
    ]
