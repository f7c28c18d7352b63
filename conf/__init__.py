"""Config groups of trieye; on Hydra's search path once a config type is registered, see `trieye.register`."""
