"""Run the shared layer on several real ranks in one start: `shared_ranks.py RANK WORLD FOLDER`.

Writes FOLDER/shared-WORLD-RANK.json, the largest differences from one rank; `test_shared_ranks.py` reads it.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from areal_core.contract.train import Head, Output, RankContext
from areal_torch import hf
from areal_torch.attention import Packing, attend
from areal_torch.context import ContextRanks
from areal_torch.layout import largest_share
from areal_torch.logprobs import logprobs_and_entropy, most_probable
from areal_torch.model import PackedModel
from areal_torch.process_group import join, leave
from areal_torch.testing.batches import make_batch

SHAPES = [(2, 3), (1, 5), (4, 9), (1, 5), (3, 1)]
"""34 tokens: no multiple of 4."""
HEADS = [(4, 4), (4, 2), (8, 2), (4, 1)]
"""Query heads, key heads: more, as many, and fewer key heads than ranks."""


class Ranks:
    """What a case is given: the ranks, and the folder of a tiny model."""

    def __init__(self, rank: int, world: int, model: Path) -> None:
        self.rank, self.world, self.model = rank, world, model
        self.mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("all",))
        self.group: dist.ProcessGroup = self.mesh.get_group()
        self.context = ContextRanks(self.group)

    def part(self, tensor: Tensor, dim: int) -> Tensor:
        """Return this rank's equal part of a tensor, a leaf of its own."""
        return tensor.chunk(self.world, dim)[self.rank].clone().requires_grad_()


def attention(ranks: Ranks) -> dict[str, float]:
    """Queries, keys and values of this rank's tokens: output and gradients are those of the same rows alone."""
    generator = torch.Generator().manual_seed(1)
    batch = make_batch(SHAPES)
    packing = Packing.of(batch, ranks.context)
    alone = Packing.of(batch)
    tokens, real = len(packing.positions), batch.num_tokens
    worst = {"output": 0.0, "gradient": 0.0}
    for query_heads, kv_heads in HEADS:
        sizes = (query_heads, kv_heads, kv_heads)
        inputs = [torch.randn(heads, tokens, 6, generator=generator) for heads in sizes]
        weight = torch.randn(tokens, query_heads, 6, generator=generator)
        weight[real:] = 0.0
        whole = [tensor[:, :real].clone().requires_grad_() for tensor in inputs]
        expected = attend(*whole, alone)
        (expected * weight[:real]).sum().backward()
        mine = [ranks.part(tensor, 1) for tensor in inputs]
        found = attend(*mine, packing)
        (found * weight[packing.part]).sum().backward()
        rows = torch.arange(tokens)[packing.part]
        rows = rows[rows < real]
        here = rows - packing.part.start
        worst["output"] = max(worst["output"], gap(expected[rows], found[here]))
        for one, several in zip(whole, mine, strict=True):
            assert one.grad is not None and several.grad is not None
            worst["gradient"] = max(worst["gradient"], gap(one.grad[:, rows], several.grad[:, here]))
    return worst


def exchange(ranks: Ranks) -> dict[str, float]:
    """Heads for tokens and back: nothing is lost, and what a rank has between is its run of heads of all tokens."""
    whole = torch.arange(8 * 12 * 2.0).view(8, 12, 2)
    mine = ranks.part(whole, 1).detach()
    heads = ranks.context.to_heads(mine)
    back = ranks.context.to_tokens(heads.transpose(0, 1))
    return {"heads": gap(whole.chunk(ranks.world)[ranks.rank], heads), "back": gap(mine.transpose(0, 1), back)}


def vocabulary(ranks: Ranks) -> dict[str, float]:
    """Rows of the head shared out: log-probs, entropy and every gradient are those of the whole head."""
    return _shared_head(ranks, 12)


def uneven_vocabulary(ranks: Ranks) -> dict[str, float]:
    """The last rank has fewer rows: two have 7 and 6, four have 4, 4, 4 and 1; all make as many chunks."""
    return _shared_head(ranks, 13)


def _shared_head(ranks: Ranks, entries: int) -> dict[str, float]:
    worst: dict[str, float] = {}
    generator = torch.Generator().manual_seed(2)
    many = 1 << 20
    share = largest_share(entries, ranks.world) if entries % ranks.world else 0
    cuttings = ((9, True, 12, 0), (9, False, many, many), (7, True, 30, many), (0, True, 12, 0))
    weight, bias = torch.randn(entries, 5, generator=generator) * 3, torch.randn(entries, generator=generator)
    for rows, with_bias, chunk, keep in cuttings:
        hidden = torch.randn(rows, 5, generator=generator)
        targets = torch.randint(0, entries, (rows,), generator=generator)
        scale = torch.randn(2, rows, generator=generator)
        whole = [tensor.clone().requires_grad_() for tensor in (hidden, weight, bias)]
        mine = [hidden.clone().requires_grad_(), ranks.part(weight, 0), ranks.part(bias, 0)]
        results = []
        for (h, w, b), group in ((whole, None), (mine, ranks.group)):
            columns = logprobs_and_entropy(
                h,
                w,
                b if with_bias else None,
                targets,
                0.7,
                chunk_elements=chunk,
                keep_elements=keep,
                vocabulary=group,
                share=0 if group is None else share,
            )
            (columns[0] * scale[0] + columns[1] * scale[1]).sum().backward()
            results.append(torch.stack(columns))
        compared = {"columns": (results[0], results[1]), "hidden": (whole[0].grad, mine[0].grad)}
        for count in (1, entries):
            best = most_probable(*whole, count, chunk_elements=chunk)
            several = most_probable(*mine, count, chunk_elements=chunk, vocabulary=ranks.group, share=share)
            compared[f"best {count}"] = (best.float(), several.float())
        compared["weight"] = (whole[1].grad.chunk(ranks.world)[ranks.rank], mine[1].grad)
        if with_bias:
            compared["bias"] = (whole[2].grad.chunk(ranks.world)[ranks.rank], mine[2].grad)
        for name, (expected, found) in compared.items():
            worst[name] = max(worst.get(name, 0.0), gap(expected, found))
    return worst


def extremes(ranks: Ranks) -> dict[str, float]:
    """Logits far apart over ranks: the normaliser keeps its digits, nothing is nan."""
    weight = torch.zeros(8, 1)
    weight[0], weight[-1] = 3e4, -3e4
    columns = logprobs_and_entropy(
        torch.ones(3, 1), ranks.part(weight, 0), None, torch.tensor([0, 7, 3]), 1.0, vocabulary=ranks.group
    )
    return {"logprobs": gap(torch.tensor([0.0, -6e4, -3e4]), columns[0]), "entropy": gap(torch.zeros(3), columns[1])}


def context_model(ranks: Ranks) -> dict[str, float]:
    """A model over context ranks: every rank has all columns, and gradients add up to those of one rank."""
    return _model(ranks, context=ranks.context)


def vocabulary_model(ranks: Ranks) -> dict[str, float]:
    """A model whose head is a DTensor of 67 rows, which divide by no degree: equal columns, whole gradients."""
    return _model(ranks, vocabulary=ranks.group)


def context_values(ranks: Ranks) -> dict[str, float]:
    """A critic over context ranks."""
    return _model(ranks, head=Head.VALUE, context=ranks.context)


def _model(
    ranks: Ranks,
    *,
    head: Head = Head.CAUSAL_LM,
    context: ContextRanks | None = None,
    vocabulary: dist.ProcessGroup | None = None,
) -> dict[str, float]:
    own = {Output.LOGPROBS, Output.ENTROPY, Output.CANDIDATE_LOGPROBS}
    outputs = frozenset({Output.VALUES} if head is Head.VALUE else own)
    batch = make_batch(SHAPES)
    asked = torch.where(batch.positions % 2 == 0, -1, batch.positions % 60)  # some rows ask for the most probable ones
    batch = batch.with_tokens(candidates=asked.to(torch.int32)[:, None].expand(-1, 2).contiguous())
    scale = torch.randn(batch.num_tokens, generator=torch.Generator().manual_seed(3))
    found = []
    for settings in ({}, {"context": context, "vocabulary": vocabulary}):
        model = hf.load_model(str(ranks.model), hf.load_config(str(ranks.model), head), head)
        if head is Head.VALUE:
            nn.init.ones_(model.score.weight)
        if settings.get("vocabulary") is not None:
            rows = distribute_tensor(model.lm_head.weight.detach(), ranks.mesh, [Shard(0)])
            model.lm_head.weight = nn.Parameter(rows)
        columns = PackedModel(model, head, temperature=0.8, **settings)(batch, outputs)
        scales = {name: scale if column.ndim == 1 else scale[:, None] for name, column in columns.items()}
        sum((column * scales[name]).sum() for name, column in columns.items()).backward()
        found.append((columns, {name: parameter.grad for name, parameter in model.named_parameters()}))
    (alone, expected), (several, gradients) = found
    worst = {"columns": max(gap(alone[name], several[name]) for name in alone), "gradient": 0.0}
    for name, gradient in gradients.items():
        whole = gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
        if context is not None:
            dist.all_reduce(whole)
        worst["gradient"] = max(worst["gradient"], gap(expected[name], whole))
    return worst


def gap(expected: Tensor, found: Tensor) -> float:
    """Return the largest difference, relative where numbers are large."""
    if expected.shape != found.shape:
        return float("inf")
    if not expected.numel():
        return 0.0
    expected, found = expected.detach(), found.detach()
    return float(((expected - found).abs() / expected.abs().clamp(min=1.0)).max())


CASES: list[Callable[[Ranks], dict[str, float]]] = [
    exchange,
    attention,
    vocabulary,
    uneven_vocabulary,
    extremes,
    context_model,
    vocabulary_model,
    context_values,
]


def main() -> None:
    rank, world, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    context = RankContext(
        rank=rank,
        world_size=world,
        local_rank=rank,
        device="cpu",
        init_method=f"file://{folder}/store-{world}",
        timeout_s=60,
    )
    group = join(context, {"d": world})
    ranks = Ranks(rank, world, folder / "model")
    results = {case.__name__: case(ranks) for case in CASES}
    (folder / f"shared-{world}-{rank}.json").write_text(json.dumps(results))
    leave(group)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
