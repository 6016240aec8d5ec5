"""Packaged facts about hardware: ``accelerators.toml``, ``fabrics.toml``, ``shapes.toml``."""
