"""For tests of plugins: a clock one steps, distributions in a folder.

Public, and imported by nothing else of the core.
"""
