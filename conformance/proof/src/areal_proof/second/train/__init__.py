"""The second trainer: functional torch on padded sequences, whole weights on every rank."""
