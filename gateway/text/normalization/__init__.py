"""Written forms into words: numbers, addresses, `say-as`, and the grammar of each language."""
