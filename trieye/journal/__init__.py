"""The durable, ordered log of what a run accepted."""
