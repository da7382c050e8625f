"""The suite held to its own standard: references pass everything, every broken backend is caught.

`areal conformance self-test` asserts five things (`judge`); work is spread over processes (`crew`, `worker`).
"""
