"""Config groups of trieye; Hydra finds them once a config type is registered, see `trieye.register`."""
