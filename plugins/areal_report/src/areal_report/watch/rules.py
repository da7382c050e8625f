"""What may be wrong with a step, one rule each: where the number is, when it is bad, and what to try.

Knows: names of metrics.
Does not know: steps before this one (`judge`), but for the engines' gap, whose growth is a matter of many.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from attrs import frozen

Record = Mapping[str, Any]  # Any: as in `metrics.jsonl`

_WINDOW = 10
_FLOOR_NATS = 0.02
"""Below this the gap is rounding, however much it grew."""


@frozen(kw_only=True)
class Rule:
    """One warning.

    `read` gives the number it is about, None where the step has none. A rule that `counts` is broken by any number
    above 0, for as many steps as its threshold says; another one by a number beyond its threshold.
    """

    name: str
    read: Callable[[Record], float | None]
    says: Callable[[float, Record], str]
    advice: Callable[[Record], str]
    counts: bool = False
    below: bool = False

    def broken(self, value: float, threshold: float) -> bool:
        """Tell whether a step's number is bad."""
        if self.counts:
            return value > 0.0
        return value < threshold if self.below else value > threshold


def rules() -> tuple[Rule, ...]:
    """Return the rules of one run, as fresh as the run."""
    return (
        Rule(
            name="no_reward_signal",
            counts=True,
            read=lambda record: _whole(_number(record, "train/zero_advantage_groups")),
            says=lambda steps, record: (
                f"every advantage was 0 for {steps:.0f} steps; the mean reward is {record.get('reward')}"
            ),
            advice=_about_signal,
        ),
        Rule(
            name="weights_unchanged",
            counts=True,
            read=_unchanged,
            says=lambda steps, _: f"the inference fleet got the weights it had, {steps:.0f} times in a row",
            advice=lambda _: (
                "look whether the gradient is 0 (grad_norm), steps are skipped, or the learning rate is "
                "too small for the weights' dtype"
            ),
        ),
        Rule(
            name="all_truncated",
            counts=True,
            read=lambda record: _whole(_number(record, "train/no_eos_ratio")),
            says=lambda steps, _: f"no answer came to an end for {steps:.0f} steps",
            advice=lambda _: (
                "raise rollout.sampling.max_new_tokens, or penalise length (algorithm.advantages.overlong); "
                "look at answers with areal episodes; check the chat template and the stop token"
            ),
        ),
        Rule(
            name="entropy_below",
            below=True,
            read=lambda record: _number(record, "train/entropy"),
            says=lambda value, _: f"the entropy is {value:.2g} nats a token: the policy hardly explores any more",
            advice=lambda _: (
                "if the reward is still low: a smaller learning rate, algorithm.objective.options."
                "entropy_coefficient, a higher clip_high, or a KL penalty against the reference model"
            ),
        ),
        Rule(
            name="clip_share_above",
            read=lambda record: _number(record, "train/clip_fraction"),
            says=lambda value, _: f"{value:.0%} of the tokens are clipped: they teach nothing",
            advice=lambda _: (
                "a smaller learning rate, fewer minibatches, a lower rollout.max_staleness, "
                "or algorithm.proximal recompute"
            ),
        ),
        Rule(
            name="engine_gap_above",
            read=lambda record: _number(record, "train/engine_gap"),
            says=lambda value, _: (
                f"trainer and inference engine differ by {value:.2g} nats a token under equal weights"
            ),
            advice=_about_gap,
        ),
        Rule(
            name="engine_gap_growth",
            read=_Growth(),
            says=lambda value, _: f"the gap between trainer and inference engine is {value:.1f} times what it was",
            advice=_about_gap,
        ),
        Rule(
            name="restarts_above",
            read=_restarts,
            says=lambda value, _: f"{value:.0%} of the requests begin a conversation anew, each with its whole prompt",
            advice=lambda _: (
                "keep_thoughts: true among the workflow's options goes on where the chat template leaves thoughts "
                "out; where an agent edits its history (episode/agent/restarted/edited), have it append"
            ),
        ),
    )


def _number(record: Record, name: str) -> float | None:
    value = record.get(name)
    return float(value) if isinstance(value, int | float) else None


def _whole(share: float | None) -> float | None:
    return None if share is None else float(share >= 1.0)


def _unchanged(record: Record) -> float | None:
    tensors, same = _number(record, "sync_tensors"), _number(record, "sync_unchanged")
    return None if not tensors or same is None else float(same >= tensors)


def _restarts(record: Record) -> float | None:
    """Return the share of requests that begin anew a conversation that was answered before."""
    requests, restarted = (_number(record, f"episode/agent/{name}") for name in ("requests", "restarted"))
    return None if not requests or restarted is None else restarted / requests


def _about_signal(record: Record) -> str:
    if (_number(record, "train/groups_all_solved") or 0.0) >= 1.0:
        return "every prompt is solved every time: end the run, or give it harder prompts"
    return (
        "look at answers and rewards with areal episodes: the reward may be broken or out of reach; "
        "easier prompts, larger groups, or a reward with parts give a signal"
    )


def _about_gap(_: Record) -> str:
    return (
        "compare dtypes, temperature and attention of trainer and engine, and whether the engine quantises; "
        "algorithm.proximal recompute with a behaviour weight (clamp or mask) bounds the harm"
    )


class _Growth:
    """How many times larger the gap between engines is than it was at first."""

    def __init__(self) -> None:
        self._first: list[float] = []
        self._last: deque[float] = deque(maxlen=_WINDOW)

    def __call__(self, record: Record) -> float | None:
        gap = _number(record, "train/engine_gap")
        if gap is None or gap != gap:
            return None
        if len(self._first) < _WINDOW:
            self._first.append(gap)
            return None
        self._last.append(gap)
        now = sum(self._last) / len(self._last)
        if len(self._last) < _WINDOW:
            return None
        return now / max(sum(self._first) / _WINDOW, 1e-9) if now > _FLOOR_NATS else 1.0
