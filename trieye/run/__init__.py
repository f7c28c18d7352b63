"""What user code holds: `Run`, `RunClient`, and the way of what they are given to the hub."""
