"""Written English into words: our own rules first (`forms`), WeText's grammar for the rest."""
