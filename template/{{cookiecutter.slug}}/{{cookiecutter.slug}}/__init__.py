"""Agent, environments, config and training commands of this project."""
