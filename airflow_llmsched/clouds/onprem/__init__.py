"""Machines of one's own as a cloud: a lease is a record in a store that all who reserve from the fleet share."""
