"""Where prices come from: a built-in list, dated snapshots, several sources at once. Live ones are in the clouds."""
