"""areal: a thin core for asynchronous reinforcement learning of language models.

Importing this package loads neither torch nor any engine. Start reading at
`areal_core.contract`, the five protocols a backend author implements.
"""

__version__ = "0.1.0"
