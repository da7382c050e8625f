"""The reward `agent`, for agents that say themselves what an episode is worth: whoever asks another one hears of it.

Knows: nothing.
Does not know: agents.
"""

from __future__ import annotations


class OwnReward:
    """Raises, whatever it is asked: an agent that tells no reward is no reward of 0."""

    def __call__(self, completion: str) -> float:
        """Raise.

        Raises:
            ValueError: says how an agent tells its reward.
        """
        raise ValueError(
            "rollout.reward is `agent`, and the agent returned no reward and told none: return a number, "
            "POST it to {base_url}/reward, write it to the file $AREAL_REWARD, or name a reward that judges its answer"
        )
