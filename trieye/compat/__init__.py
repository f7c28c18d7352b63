"""The API of trieye 0.1.5, for programs that were written for it.

Its config models live in `trieye.config` and accept its spellings (`trieye.config.spellings`). Its module
names, `trieye.actor`, `trieye.schemas` and so on, import from here; in the rest of trieye only the command line does.
"""
