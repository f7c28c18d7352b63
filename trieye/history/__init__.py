"""The history of a run: all points and operations, in memory, in journal chunks and in Parquet files."""
