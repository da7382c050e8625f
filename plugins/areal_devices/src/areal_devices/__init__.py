"""The accelerators areal knows, one module per vendor. Third parties add theirs the same way."""
