"""Azure: a lease is one scale set, of one size, in one zone and one placement group."""
