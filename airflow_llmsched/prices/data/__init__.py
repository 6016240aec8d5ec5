"""Packaged list prices (``list_prices.toml``)."""
