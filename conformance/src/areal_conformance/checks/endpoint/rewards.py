"""A reward told over HTTP is the session's whose key told it; the last one counts.

Knows: rewards by call, and what trajectories say of them.
Does not know: who judges.
"""

from __future__ import annotations

from areal_conformance.benches.endpoint import EndpointBench, trained
from areal_conformance.check import Level, check
from areal_conformance.outcome import expect

_REWARDS = "endpoint#rewards"


@check("endpoint.rewards.last", level=Level.SINGLE, law=5, spec=_REWARDS)
async def last(bench: EndpointBench) -> None:
    """Of several rewards the last one counts, also a lower one and zero; none told is None, and never zero."""
    async with bench.opened() as opened:
        await opened.agent.say("stone?")
        expect(opened.open.reward is None, f"nobody told a reward, and it is {opened.open.reward}")
        for value in (0.25, 1, -2.5, 0):
            told = await opened.agent.reward(value)
            expect(told.status == 200, f"the reward {value} is refused with {told.status}: {told.reason}")
            expect(opened.open.reward == value, f"{value} was told last, the reward is {opened.open.reward}")
    expect(opened.open.reward == 0, f"after the session the reward is {opened.open.reward}")


@check("endpoint.rewards.own", level=Level.SINGLE, law=5, spec=_REWARDS)
async def own(bench: EndpointBench) -> None:
    """A reward goes to the session whose key told it, and to no other that is open."""
    async with bench.opened() as first, bench.opened() as second, bench.opened() as third:
        for opened in (third, first, second):
            await opened.agent.say("stone?")
        await second.agent.reward(0.5)
        await first.agent.reward(0.25)
        seen = [opened.open.reward for opened in (first, second, third)]
        expect(
            seen == [0.25, 0.5, None], f"told were 0.25 to the first and 0.5 to the second of three: they have {seen}"
        )


@check("endpoint.rewards.refused", level=Level.SINGLE, law=5, spec=_REWARDS)
async def refused(bench: EndpointBench) -> None:
    """What is no finite number is refused with a reason, and leaves the reward as it was."""
    async with bench.opened() as opened:
        await opened.agent.reward(0.75)
        wrong = (b"NaN", b"Infinity", b"1e999", b'"much"', b"null", b"true", b"[1]")
        for body in (b"{}", b"1", b"{", *(b'{"reward": %b}' % value for value in wrong)):
            told = await opened.agent.post("/reward", body)
            expect(400 <= told.status < 500 and told.reason, f"{body!r} as a reward is answered with {told}")
            expect(opened.open.reward == 0.75, f"after {body!r} the reward is {opened.open.reward}, 0.75 was told")


@check("endpoint.rewards.discount", level=Level.SINGLE, law=5, spec=_REWARDS)
async def discount(bench: EndpointBench) -> None:
    """Trajectories have the reward of the episode, times the discount for each request they end before the last."""
    async with bench.opened() as opened:
        endpoint = await bench.endpoint()
        await opened.agent.say("stone?")
        other = bench.agent(endpoint, opened.agent.key)
        await other.say("quite another?")
        await opened.agent.say("ab ba?")
        await opened.agent.say("well?")
        whole = [one.reward for one in trained(opened, 2.0)]
        expect(whole == [2.0, 2.0], f"without a discount trajectories of an episode worth 2 are worth {whole}")
        made = {int(one.loss_mask.sum()): one.reward for one in trained(opened, 2.0, turn_discount=0.5)}
        long, short = max(made), min(made)
        seen = (made[long], made[short])
        expect(
            seen == (2.0, 0.5),
            f"of trajectories that end 0 and 2 requests before the last, worth (2, 0.5), are told {seen}",
        )
