"""Where a hub lives: in a thread of this process, or in a Ray actor; the same methods either way."""
