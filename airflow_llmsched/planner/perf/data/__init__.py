"""Packaged facts about hardware (``hardware.toml``)."""
