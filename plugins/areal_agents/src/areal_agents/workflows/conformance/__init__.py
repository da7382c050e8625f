"""What the conformance suite must know of the workflows of turns: an adapter for each."""
