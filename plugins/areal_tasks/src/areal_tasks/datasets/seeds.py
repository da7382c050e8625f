"""Where the random items of a generated data set start, so that no two splits share one.

Knows: that reasoning-gym makes item i of seed s from `Random(s + i)`.
Does not know: which data set is generated.

The numbers are cut into slots of 1e8. Slot 20 is the held-out split, the same for every run;
every other slot is the training split of one seed.
"""

from __future__ import annotations

from attrs import field, frozen, validators

SLOT = 100_000_000
HELD_SLOT = 20


@frozen(kw_only=True)
class SplitConfig:
    """Options every generated data set has."""

    split: str = field(default="train", validator=validators.in_(("train", "held")))
    """The items to train on, or those held out."""
    seed: int = field(default=1, validator=validators.ge(0))
    """Chooses the training items; the held-out items are the same for all seeds."""
    size: int = field(default=1_000_000, validator=[validators.ge(1), validators.le(SLOT)])
    """Items of the data set."""

    @property
    def first(self) -> int:
        """The seed of item 0; item i has this plus i."""
        if self.split == "held":
            return HELD_SLOT * SLOT
        return (self.seed if self.seed < HELD_SLOT else self.seed + 1) * SLOT
