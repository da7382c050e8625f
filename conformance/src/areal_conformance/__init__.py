"""The conformance suite of areal: any backend, one contract, a verdict and a report.

    areal conformance run --backend fsdp --role train --device cpu --ranks 2

Start reading at `check` (what a check is), `adapter` (what a backend supplies) and `session` (how one is run).
Importing this package imports no torch.
"""

__version__ = "0.1.0"
