"""Benchmarks: figures that the project promises, measured against a reference in the same harness."""
