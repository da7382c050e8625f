"""Aids for machines without a GPU: nothing here is ever on the path of a rank whose device is cuda."""
