"""Who starts, who waits and who leaves, among many gangs."""
