"""Arithmetic and search. Pure: no clock, no I/O, no engine names."""
