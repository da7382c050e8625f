"""`areal conformance`: one module a sub-command."""
