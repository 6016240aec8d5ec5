"""The ``llmsched`` command: thin, no decisions of its own. Import from the modules."""
