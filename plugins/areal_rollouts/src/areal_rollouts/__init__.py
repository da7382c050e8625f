"""Workflows and rewards in processes of their own: what `rollout.processes` asks for."""
