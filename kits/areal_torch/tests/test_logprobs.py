"""The chunked head against autograd through all logits at once."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from areal_torch.logprobs import logprobs_and_entropy, most_probable


@given(
    rows=st.integers(0, 9),
    chunk=st.sampled_from([1, 20, 1 << 20]),
    keep=st.sampled_from([0, 1 << 20]),
    temperature=st.sampled_from([1.0, 0.6, 2.0]),
    bias=st.booleans(),
    seed=st.integers(0, 50),
)
def test_values_and_gradients_do_not_depend_on_chunks(
    rows: int, chunk: int, keep: int, temperature: float, bias: bool, seed: int
) -> None:
    """Kept or computed again, in any chunk: log-prob, entropy and three gradients are those of a plain softmax."""
    generator = torch.Generator().manual_seed(seed)
    inputs = [torch.randn(rows, 4, generator=generator), torch.randn(7, 4, generator=generator)]
    inputs += [torch.randn(7, generator=generator)] if bias else []
    targets = torch.randint(0, 7, (rows,), generator=generator)
    weights = torch.randn(2, rows, generator=generator)
    ours = [tensor.clone().requires_grad_() for tensor in inputs]
    plain = [tensor.clone().requires_grad_() for tensor in inputs]

    logprobs, entropy = logprobs_and_entropy(
        ours[0], ours[1], ours[2] if bias else None, targets, temperature, chunk_elements=chunk, keep_elements=keep
    )
    (logprobs * weights[0] + entropy * weights[1]).sum().backward()
    log_p = (torch.nn.functional.linear(*plain) / temperature).log_softmax(-1)
    expected = log_p.gather(1, targets[:, None])[:, 0], -(log_p.exp() * log_p).sum(-1)
    (expected[0] * weights[0] + expected[1] * weights[1]).sum().backward()

    torch.testing.assert_close((logprobs, entropy), expected, rtol=1e-5, atol=1e-6)
    for left, right in zip(ours, plain, strict=True):
        torch.testing.assert_close(left.grad, right.grad, rtol=1e-4, atol=1e-5)


def test_impossible_tokens_leave_the_entropy_finite() -> None:
    """A logit of minus infinity (a masked vocabulary entry) has no part in entropy or gradient."""
    hidden = torch.ones(1, 1, requires_grad=True)
    weight = torch.tensor([[0.0], [1.0], [-torch.inf]])

    logprobs, entropy = logprobs_and_entropy(hidden, weight, None, torch.tensor([1]), 1.0)

    p = torch.tensor([0.0, 1.0]).softmax(-1)
    assert entropy.item() == pytest.approx(float(-(p * p.log()).sum()))
    assert logprobs.item() == pytest.approx(float(p[1].log()))


@pytest.mark.parametrize("keep", [0, 1 << 20])
def test_an_entropy_nothing_is_made_of_leaves_the_gradient_as_it_was(keep: int) -> None:
    """To the bit: it may be computed for the metrics alone."""
    generator = torch.Generator().manual_seed(1)
    hidden, weight = torch.randn(9, 4, generator=generator), torch.randn(7, 4, generator=generator)
    gradients = []
    for with_entropy in (False, True):
        leaves = [hidden.clone().requires_grad_(), weight.clone().requires_grad_()]
        logprobs, _ = logprobs_and_entropy(
            *leaves, None, torch.arange(9) % 7, 0.7, with_entropy=with_entropy, keep_elements=keep
        )
        (logprobs * torch.linspace(-1, 1, 9)).sum().backward()
        gradients.append([leaf.grad for leaf in leaves])

    for without, with_it in zip(*gradients, strict=True):
        assert without is not None and with_it is not None and torch.equal(without, with_it)


def test_the_entropy_alone_has_a_gradient() -> None:
    """An objective may use it without the log-probs."""
    hidden = torch.randn(3, 4, requires_grad=True)

    logprobs_and_entropy(hidden, torch.randn(7, 4), None, torch.tensor([0, 1, 2]), 1.0)[1].sum().backward()

    assert hidden.grad is not None and bool(hidden.grad.any())


@given(
    count=st.integers(1, 7),
    chunk=st.sampled_from([1, 20, 1 << 20]),
    keep=st.sampled_from([0, 1 << 20]),
    with_entropy=st.booleans(),
    seed=st.integers(0, 50),
)
def test_several_targets_are_each_judged_as_one_alone(
    count: int, chunk: int, keep: int, with_entropy: bool, seed: int
) -> None:
    """Values and gradients of a row of targets, twice the same among them, are those of a plain softmax."""
    generator = torch.Generator().manual_seed(seed)
    inputs = [torch.randn(5, 4, generator=generator), torch.randn(7, 4, generator=generator)]
    targets = torch.randint(0, 7, (5, count), generator=generator)
    scale = torch.randn(5, count, generator=generator)
    ours, plain = ([tensor.clone().requires_grad_() for tensor in inputs] for _ in range(2))

    logprobs, entropy = logprobs_and_entropy(
        *ours, None, targets, 0.7, with_entropy=with_entropy, chunk_elements=chunk, keep_elements=keep
    )
    ((logprobs * scale).sum() + (0.3 * entropy.sum() if with_entropy else 0.0)).backward()
    log_p = (torch.nn.functional.linear(*plain) / 0.7).log_softmax(-1)
    expected = log_p.gather(1, targets)
    ((expected * scale).sum() - 0.3 * with_entropy * (log_p.exp() * log_p).sum()).backward()

    torch.testing.assert_close(logprobs, expected, rtol=1e-5, atol=1e-6)
    for left, right in zip(ours, plain, strict=True):
        torch.testing.assert_close(left.grad, right.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rows", [0, 1, 5])
@pytest.mark.parametrize("chunk", [1, 20, 1 << 20])
def test_the_most_probable_are_those_of_all_logits(rows: int, chunk: int) -> None:
    """In order, whatever the chunks."""
    generator = torch.Generator().manual_seed(3)
    hidden, weight, bias = (torch.randn(*shape, generator=generator) for shape in ((rows, 4), (7, 4), (7,)))

    for count in (1, 3, 7):
        found = most_probable(hidden, weight, bias, count, chunk_elements=chunk)
        assert torch.equal(found, torch.nn.functional.linear(hidden, weight, bias).topk(count).indices)
