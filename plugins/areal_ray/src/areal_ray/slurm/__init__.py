"""Runs as jobs of Slurm: `areal slurm`."""
