"""The flow: speech tokens to mel."""
