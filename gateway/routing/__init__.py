"""Several replicas of each service behind one gateway: who serves, who waits, who takes over."""
