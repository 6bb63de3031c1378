"""How words are spoken that a caller spells out: dictionaries and phonemes."""
