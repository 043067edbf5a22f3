"""Models that are cut into parts, each on a server of its own."""
