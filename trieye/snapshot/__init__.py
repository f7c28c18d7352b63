"""Snapshots: encoding and decoding of objects, random generators and environments."""
