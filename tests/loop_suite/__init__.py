"""The core's own asynchronous loop, checked with the machinery of the conformance suite.

`checks` are the rules, each guarding one law; `mutants` are loops with one defect each, and every check kills at
least one of them. `inventory.json` pins the checks, `matrix.json` which mutant is killed by which check:

    python -m tests.loop_suite             what differs from the two files
    python -m tests.loop_suite --write     renew them
    python -m tests.loop_suite --full      run every check on every mutant, not only its declared killers

Knows: the loop as a target, and where its files are.
Does not know: any backend; replicas are scripted and time is stepped.
"""
