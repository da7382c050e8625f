"""A second inference engine: one coroutine, whole forwards, no cache of keys and values."""
