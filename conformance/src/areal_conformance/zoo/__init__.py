"""A zoo in place of one tiny model: folders drawn from what config.json of real families can say, a few thousand
parameters each.

`architectures` says what each family can be like, `covering` draws a sample in which every value, then every pair of
values, occurs, and `folders` writes a drawn model as a folder of the hub would be written.
"""
