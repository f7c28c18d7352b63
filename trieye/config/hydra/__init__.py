"""Everything that imports Hydra: command line, composition, schema and error messages."""
