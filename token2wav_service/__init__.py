"""Speech tokens to waveform: models, the batching engine, and its Triton face."""
