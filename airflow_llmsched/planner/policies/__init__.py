"""Policies: pure functions from what happened to what should happen."""
