"""Replicas that are killed and restarted under load, and what the callers hear of it."""
