"""What a run and a scheduler agree on: public, for authors of schedulers.

- `rendezvous`: where ranks meet, and the variables that keep collectives to one address.
- `supervise`: from a worker's state to the error that names it.

The worker's own side is the kit `areal_worker`.
"""
