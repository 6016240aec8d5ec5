"""Who does what next: the pure run machine and poller, the journal they are replayed from, and the driver that acts."""
