"""What a scheduler needs to host engines: public, for authors of schedulers.

A scheduler plugin imports `areal_core.contract`, `areal_core.plugins` and this package, and nothing else of the core:

- `service`: what a worker process does with a call. `HOSTS[role](Place(...))` is the whole worker side.
- `codec`, `schema`: calls, results and errors as bytes; `schema.fingerprint()` tells whether two processes may talk.
- `rendezvous`: where ranks meet, and the variables that keep collectives to one address.
- `devices`: no device given out twice, and the variables that confine a worker to its own.
- `claims`: refusing a job that asks for what a manifest does not claim.
- `supervise`: from a worker's state to the error that names it; `watchdog`: no orphans.
"""
