"""What a run leaves to its reader: figures, one HTML file, JSON. Built from domain values only."""
