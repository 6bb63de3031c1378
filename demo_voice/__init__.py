"""The bundled demo voice: a small trained checkpoint, how it is unpacked, and how it was trained (`train/`)."""
