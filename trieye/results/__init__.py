"""Results: what the runs of a sweep came to, with figures that say how far seeds allow them to be trusted."""
