"""Small sums for a pretrained model: "1 - 6 =" -> " -5", then the end token.

Knows: reasoning-gym's `chain_sum` and a prompt of worked examples before each item.
Does not know: how completions are scored (`areal_tasks.rewards.gym`).
"""

from __future__ import annotations

from attrs import field, frozen, validators

from areal_core.contract.errors import DatasetError
from areal_tasks.datasets.rows import LazyRows, Row
from areal_tasks.datasets.seeds import SplitConfig

EXAMPLES = "3 + 4 = 7\n9 - 2 = 7\n1 - 6 = -5\n"


@frozen(kw_only=True)
class ChainSumConfig(SplitConfig):
    """Options of `chain_sum`.

    Two terms of one digit make 200 different items: splits differ in draws, not in items.
    """

    min_terms: int = field(default=2, validator=validators.ge(2))
    """Terms of a sum at least."""
    max_terms: int = field(default=2, validator=validators.ge(2))
    """Terms of a sum at most."""
    min_digits: int = field(default=1, validator=validators.ge(1))
    """Digits of a term at least."""
    max_digits: int = field(default=1, validator=validators.ge(1))
    """Digits of a term at most."""
    examples: str = EXAMPLES
    """Put before every prompt, as it is."""


def chain_sum(config: ChainSumConfig) -> LazyRows:
    """Return rows {"prompt": "<examples>4 + 2 =", "answer": "6", "entry": reasoning-gym's item}.

    Raises:
        DatasetError: a minimum exceeds its maximum.
    """
    from reasoning_gym.arithmetic.chain_sum import ChainSumConfig as ItemConfig
    from reasoning_gym.arithmetic.chain_sum import ChainSumDataset

    for name in ("terms", "digits"):
        low, high = getattr(config, f"min_{name}"), getattr(config, f"max_{name}")
        if low > high:
            raise DatasetError(f"min_{name} is {low}, max_{name} is {high}", why="the minimum exceeds the maximum")
    items = ChainSumDataset(
        ItemConfig(
            seed=config.first,
            size=config.size,
            min_terms=config.min_terms,
            max_terms=config.max_terms,
            min_digits=config.min_digits,
            max_digits=config.max_digits,
        )
    )

    def make(index: int) -> Row:
        entry = items[index]
        prompt = f"{config.examples}{entry['metadata']['expression']} ="
        return {"prompt": prompt, "answer": entry["answer"], "entry": entry}

    return LazyRows(config.size, make)
