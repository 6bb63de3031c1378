"""Where a stream of speech tokens is cut: policies that choose the size of a chunk, and the chunker."""
