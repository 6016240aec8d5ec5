"""Choosing nodes and mapping ranks."""
