"""Config groups of trieye; a project's primary config adds them with `hydra.searchpath: [pkg://trieye.conf]`."""
