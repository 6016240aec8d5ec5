"""Workload specs: YAML in, ``WorkloadSpec`` or every error at once out. Start at ``specs.loader``."""
