"""What the suite puts into processes of its own to see what a scheduler does with them.

Knows: nothing itself. `engine` is what a worker hosts.
Does not know: any scheduler.
"""
