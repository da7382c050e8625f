"""`areal job`: runs handed to a Ray cluster through its job API."""
