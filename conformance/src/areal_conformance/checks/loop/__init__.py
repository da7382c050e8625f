"""The asynchronous loop of the core: what is trained on, when, how often, and what a failure becomes."""
