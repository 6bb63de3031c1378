"""The small OpenAI-compatible server on Transformers: engine, HTTP face, and how they are put together."""
