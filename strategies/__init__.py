"""Server rules, one file each."""
