"""One process among others: the run's lock, signals, the terminal, its share of the machine."""
