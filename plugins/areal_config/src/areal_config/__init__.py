"""What a run's yaml may hold: keys, a JSON schema, names of other systems."""
