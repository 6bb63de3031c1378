"""The thin client between users and the two services; imports no torch."""
