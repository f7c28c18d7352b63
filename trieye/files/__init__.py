"""The files of a run: written whole or not at all, with checksums, and who the run is."""
