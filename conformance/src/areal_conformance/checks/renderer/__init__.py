"""Checks of renderers: how conversations become tokens, and outputs messages, as the model's own template has it."""
