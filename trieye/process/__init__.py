"""Operating-system processes: the run lock, signals, terminal output, child processes and CPU share."""
