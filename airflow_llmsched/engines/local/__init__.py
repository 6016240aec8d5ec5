"""The local engine: nodes emulated by real processes on this machine. Import from the modules, not from here."""
