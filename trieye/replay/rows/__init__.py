"""The rows of a replay buffer: who owns their memory, and who reads them."""
