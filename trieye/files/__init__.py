"""File primitives: atomic writes, checksums, file system types, and the names and identity of a run's files."""
