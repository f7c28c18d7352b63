"""Aggregates events into windows and points; plain objects without clocks, threads, files or sinks."""
