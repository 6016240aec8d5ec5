"""The cluster and the job as weighted graphs: mapping one onto the other is what placement solves. Pure."""
