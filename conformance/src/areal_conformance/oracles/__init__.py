"""What right answers are computed with: slow, plain, and independent of every backend."""
