"""The agent, its environment, its config, and the commands that train and evaluate it."""
