"""The Slurm engine: gangs as jobs of a cluster with a scheduler of its own. Import from the modules, not from here."""
