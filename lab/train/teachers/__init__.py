"""The teachers: synthesisers that speak the corpus, and the choice among them."""
