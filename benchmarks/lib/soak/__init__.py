"""The soak's parts: callers who come and go in every way, and what the processes use meanwhile."""
