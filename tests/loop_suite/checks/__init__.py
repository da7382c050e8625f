"""The rules of the loop: what is trained on, when, how often, and what a failure becomes."""
