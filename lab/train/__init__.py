"""Trains the demo voice from nothing: corpus, models, packaging. Needs no network; see README.md in this folder."""
