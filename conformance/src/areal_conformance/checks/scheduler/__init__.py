"""Checks of schedulers: where workers run, what calls to them give, and what is left of them."""
