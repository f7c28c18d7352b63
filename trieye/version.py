"""The version of trieye; both distributions, `trieye` and `trieye-core`, take theirs from here."""

VERSION = "0.2.0"
