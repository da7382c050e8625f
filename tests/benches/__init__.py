"""Benches of the core's own loop: a rollout side, a fleet that comes and goes, workers that hold real weights."""
