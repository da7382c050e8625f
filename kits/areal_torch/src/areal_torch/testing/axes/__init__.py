"""A train engine that cuts a model along several axes, held to a plain PyTorch loop: for the tests of such engines.

`plan` is what an engine is to do, `program` and `beside` are what its ranks run, `oracle` the loop, `claims` the tests
a plugin's test class inherits.
"""
