"""A second, differently written implementation of every role: it claims everything optional that a check looks at.

The reference backends share parts with areal; these share nothing but the contract. They are slow and plain on
purpose: a check that only a shared mistake satisfies fails here, and an ability no shipped backend claims is
not left without a backend that shows its check can pass.
"""
