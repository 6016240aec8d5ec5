"""Placement solvers that need a library of their own: adapters, which no other package imports."""
