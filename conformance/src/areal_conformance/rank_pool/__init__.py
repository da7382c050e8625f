"""The controller's side of several ranks: real processes, started once, that outlive checks.

    wire         one json message over a socket
    fork_server  the process that has torch in memory; it forks ranks and tells who has ended
    pool         one program on every rank: run it, notice who did not come back

Nothing is pickled and nothing listens: every rank is reached by a socket pair it inherited.

Knows: processes and messages.
Does not know: programs (`ranks`), or what is right.
"""
