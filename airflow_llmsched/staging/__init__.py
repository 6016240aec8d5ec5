"""Stages training text: finds it, packs it into checksummed shards, and checks them later."""
