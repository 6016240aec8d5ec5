"""Cost of one training step: parameters, FLOPs, memory, communication, time."""
