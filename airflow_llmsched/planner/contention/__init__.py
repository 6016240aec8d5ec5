"""What gangs that share links of a network do to each other, and what helps. Pure."""
