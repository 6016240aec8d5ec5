"""Triggers: they observe, renew and hand over; they never act on a healthy gang."""
