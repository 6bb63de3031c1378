"""What makes the generated parts of the documentation; `docs/generate.py` calls it."""
