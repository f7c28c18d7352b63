"""The journal: the durable, ordered log of everything that a run accepted."""
