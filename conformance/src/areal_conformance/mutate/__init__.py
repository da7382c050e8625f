"""Mutants made by machine: which single edits of a backend's source does no check notice?

    source       the text of one module, and edits of it
    operators/   what can be changed: one rule a function
    edits        those that a person wrote instead
    mutants      every mutant of a module, its key, a sample of them
    scope        which modules are a backend's own
    hook         the source of one module replaced, or its lines told, in any process
    zygote       a warm process that forks; `process` is the other end of it
    child        what a forked process does
    cover        which checks run which lines
    triage       what people said of survivors
    score        how many die, and how sure that is
    run          all of it in order; `report` tells it

Does not know: any backend, any check.
"""
