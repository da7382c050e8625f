"""Checks of inference engines, by area.

Knows: nothing; every module beside it holds one area.
Does not know: any backend.
"""
