"""Every point and operation of a run, each with an index."""
