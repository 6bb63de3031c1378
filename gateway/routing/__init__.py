"""Several replicas of each service behind one gateway: which serves a stream, which streams wait, who is ejected."""
