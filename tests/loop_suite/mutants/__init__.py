"""Loops with one defect each. `part` says how one replaces a part of the core's own."""
