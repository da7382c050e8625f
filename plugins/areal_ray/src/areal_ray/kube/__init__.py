"""Runs as jobs of KubeRay: `areal kube`."""
