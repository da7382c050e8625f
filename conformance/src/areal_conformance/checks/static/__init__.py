"""Level 0: what can be known of a plugin without starting it."""
