"""Several clusters as one engine."""
