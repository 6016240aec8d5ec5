"""Readers of descriptions of networks, one module a source: text or plain objects in, a tree and counted oddities out.

Nothing here asks anybody: whoever has the text hands it over. Names found in it end up as parts of paths, nowhere else.
"""
