"""What both services' GPU engines share; imports nothing of ours, and is imported by the services only."""
