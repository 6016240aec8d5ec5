"""Checks of the very nodes a gang is about to run on: one process on each slot, as training will have."""
