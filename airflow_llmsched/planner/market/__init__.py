"""Renting: what capacity costs, how long it stays, and when to take which."""
