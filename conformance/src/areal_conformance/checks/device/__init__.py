"""A kind of device: what can be known of it without one."""
