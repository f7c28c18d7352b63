"""Adapters that turn programs written for other loggers and trainers into runs by changing one line."""
