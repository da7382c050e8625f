"""Programs on several ranks: real processes, started once, that outlive checks.

    wire        one json message over a socket
    worker      the process that imports torch once and forks ranks, and a rank's main loop
    nursery     the parent's side of that process: it bears ranks and tells who has ended
    pool        the parent's side of a program: run it, notice who did not come back
    bench       what a program is given on its rank
    answers     what programs give back
    layouts     what checks make of layouts and answers, without torch
    objectives  objectives by name, for a program's arguments

The programs themselves, which see the backend, are in `starts`, `steps`, `state`, `weights`, `faults` and `optional`;
checks judge what they return. Nothing is pickled and nothing listens: every rank is reached by a socket pair it
inherited.
"""
