"""What every process of the system uses: clock, logs, tracing, heap, timeouts, drain. Imports nothing of ours."""
