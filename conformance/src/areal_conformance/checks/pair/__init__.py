"""What a train engine and an inference engine owe each other: the same weights, the same numbers, the same versions."""
