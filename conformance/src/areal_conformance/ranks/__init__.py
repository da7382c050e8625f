"""Programs on several ranks, in the processes of `rank_pool`.

    worker      the process that imports torch once and forks ranks, and a rank's main loop
    bench       what a program is given on its rank
    answers     what programs give back
    layouts     what checks make of layouts and answers, without torch

The programs themselves, which see the backend, are in `starts`, `steps`, `state`, `weights`, `faults` and `optional`;
checks judge what they return.
"""
