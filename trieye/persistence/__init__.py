"""What a run keeps on disk: checkpoints, its record, its lock, and how a later attempt finds them."""
