"""Checks of endpoints: where agents ask the policy, and what of it is trained on."""
