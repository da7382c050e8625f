"""One run, from what was asked for to its verdict: asked -> plan (profile, ledger, facts) -> record -> verdict.

Knows: what a run owes, what it leaves behind, and what that amounts to.
Does not know: how a check is made (`session`), or who drives it (`pytest_plugin`, `cli`).
"""
