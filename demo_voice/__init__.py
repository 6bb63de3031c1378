"""The bundled demo voice: a small trained checkpoint, how it is unpacked, and how it was trained (`train/`)."""

DIGEST_FILE = "demo_voice.sha256"
"""In an unpacked checkpoint: which bundle and voices it was made of."""
