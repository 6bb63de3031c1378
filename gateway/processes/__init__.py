"""Several processes behind the ports of one gateway: a parent that decides what all share, and workers that serve."""
