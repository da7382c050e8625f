"""Programs on several ranks: real processes, started once, that outlive checks.

    wire        one json message over a socket
    worker      the nursery, which imports torch once and forks ranks, and a rank's main loop
    gang        the parent's side: start, run a program, notice who did not come back
    bench       what a program is given on its rank
    programs    the programs themselves, which see the backend; checks judge what they return

Nothing is pickled and nothing listens: every rank is reached by a socket pair it inherited.
"""
