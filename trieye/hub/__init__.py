"""The hub owns a run: it accepts and aggregates events, saves checkpoints and feeds sinks, in a thread or Ray actor."""
