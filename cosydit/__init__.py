"""The `cosydit` command, and the few things all services share (the injected clock)."""
