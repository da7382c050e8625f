"""Real clusters for tests, on one machine."""
