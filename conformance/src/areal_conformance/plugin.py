"""The pytest plugin of the suite; does nothing unless asked."""
