"""For tests of plugins: a clock one steps, scripted inference engines and workers, distributions in a folder.

Public, and imported by nothing else of the core.
"""
