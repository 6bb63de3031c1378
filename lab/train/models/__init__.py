"""The models of the demo voice as they are trained, each with its training stage."""
