"""Frozen values without I/O. Import from the modules, not from here."""
