"""Measures of what is heard: pure functions over samples, words, tokens and embeddings."""
