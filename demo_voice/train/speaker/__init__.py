"""Speaker encoder: filter bank energies to an embedding of 192."""
