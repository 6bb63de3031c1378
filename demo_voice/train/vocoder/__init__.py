"""The vocoder: mel to audio."""
