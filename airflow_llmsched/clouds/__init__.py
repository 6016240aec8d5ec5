"""Adapters to what rents machines out. Each imports its SDK itself, and none imports another."""
