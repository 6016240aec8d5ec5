"""Bare hosts over SSH: what a lease of plain machines needs. Import from the modules, not from here."""
