"""All services on one machine: started, waited for, stopped together."""
