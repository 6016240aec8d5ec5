"""What the author of an adapter subclasses to prove it. Import from the modules, not from here."""
