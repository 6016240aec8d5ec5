"""Bytes under keys, on a folder or on a cloud's object storage, behind ``ports.ObjectStore``."""
