"""Where measurements come from. Import from the modules, not from here."""
