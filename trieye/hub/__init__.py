"""What owns a run: it accepts, aggregates, saves, and tells the sinks; in a thread or in a Ray actor."""
