"""One module for each way to start the ranks of one node. Standard library only; no effects: lists of what to start."""
