"""A live view of running services, read from their metrics."""
