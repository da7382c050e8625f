"""State machines: random orders of operations against a model that says what must hold after each.

Every machine is a list of operations drawn by hypothesis, without a random seed and without a
database, and interpreted in one event loop; rules of hypothesis's own machines cannot be coroutines.
"""
