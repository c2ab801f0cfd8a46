"""Client methods, one file each, as local programs."""
