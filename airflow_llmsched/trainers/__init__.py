"""Training scripts that run inside the ranks of a gang, and the evaluation of what they saved."""
