"""The corpus's texts: read from Debian packages, or generated from seeds."""
