"""Checks of workflows: what becomes of a prompt, its tokens and its reward."""
