"""Text to speech tokens: knows nothing of audio or Triton."""
