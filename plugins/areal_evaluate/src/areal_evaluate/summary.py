"""What the samples of an evaluation amount to, per benchmark, and how that looks as json and as a table.

Knows: which numbers are told of a benchmark.
Does not know: formulas (`estimates`), or where samples are kept (`samples`).
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import TYPE_CHECKING

from attrs import frozen

from areal_evaluate.estimates import Estimate, estimate, pass_at_k
from areal_evaluate.plan import BenchmarkPlan
from areal_evaluate.samples import Sample, SampleId

if TYPE_CHECKING:
    from rich.table import Table


@frozen(kw_only=True)
class Score:
    """One benchmark. Only prompts whose samples are all there count, so that short answers have no head start.

    Example: Score(prompts=256, prompts_asked=256, samples=2048, rejected=0, left_out=0, truncated=12,
        output_tokens=31.5, metrics={"avg@8": Estimate(value=0.42, ...), "pass@1": ..., "pass@8": ...})
    """

    prompts: int
    prompts_asked: int
    samples: int
    """Of the prompts that count, those rejected left out."""
    rejected: int
    """The workflow returned no episode; such a sample is no zero, it does not count."""
    left_out: int
    """Prompts that leave no room for an answer."""
    truncated: int
    """Samples cut off by the token budget."""
    output_tokens: float
    """Of a sample, the mean."""
    metrics: Mapping[str, Estimate]


def score(
    plan: BenchmarkPlan, confidence: float, num_rows: int, left_out: int, samples: Mapping[SampleId, Sample]
) -> Score:
    """Return the score of a benchmark from the samples there are; more of a prompt than asked for are left out."""
    prompts = []
    for index in range(num_rows):
        found = [samples.get(SampleId(plan.name, index, member)) for member in range(plan.samples)]
        whole = [sample for sample in found if sample is not None]
        if len(whole) == plan.samples:
            prompts.append(whole)
    rewards = [[sample.reward for sample in prompt if sample.reward is not None] for prompt in prompts]
    counted = [sample for prompt in prompts for sample in prompt if sample.reward is not None]
    metrics = {f"avg@{plan.samples}": estimate([fmean(each) for each in rewards if each], confidence=confidence)}
    for k in plan.k:
        chances = [
            pass_at_k(len(each), sum(reward >= plan.pass_reward for reward in each), k)
            for each in rewards
            if len(each) >= k
        ]
        metrics[f"pass@{k}"] = estimate(chances, confidence=confidence, share=True)
    return Score(
        prompts=len(prompts),
        prompts_asked=num_rows,
        samples=len(counted),
        rejected=sum(map(len, prompts)) - len(counted),
        left_out=left_out,
        truncated=sum(sample.truncated for sample in counted),
        output_tokens=fmean(sample.output_tokens for sample in counted) if counted else 0.0,
        metrics={name: found for name, found in metrics.items() if found is not None},
    )


def table(scores: Mapping[str, Score], confidence: float) -> Table:
    """Return the scores as a table of at most 80 columns where names are short."""
    from rich.table import Table

    shown = Table(box=None, pad_edge=False)
    shown.add_column("benchmark", overflow="fold")
    for heading in ("metric", "value", f"{confidence:.4g} interval", "prompts", "samples", "cut off", "tokens"):
        shown.add_column(heading, justify="left" if heading == "metric" else "right", no_wrap=True)
    for name, found in scores.items():
        facts = (f"{found.samples}", f"{found.truncated}", f"{found.output_tokens:.1f}")
        if not found.metrics:
            shown.add_row(name, "-", "-", "-", f"0/{found.prompts_asked}", *facts)
        for number, (metric, each) in enumerate(found.metrics.items()):
            interval = "-" if each.low is None else f"{each.low:.4f} {each.high:.4f}"
            asked = f"{each.prompts}" + (f"/{found.prompts_asked}" if each.prompts < found.prompts_asked else "")
            first = (name, *facts) if not number else ("", "", "", "")
            shown.add_row(first[0], metric, f"{each.value:.4f}", interval, asked, *first[1:])
    return shown
