"""What knows Hydra: the command line, composing, and its messages."""
