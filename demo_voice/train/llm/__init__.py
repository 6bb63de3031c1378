"""The speech-token LLM: text to speech tokens."""
