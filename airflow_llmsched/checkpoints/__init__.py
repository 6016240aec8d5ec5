"""Checkpoint formats: when a checkpoint on storage is complete, whether it is sound, and who can resume from it."""
