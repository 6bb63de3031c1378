"""Converts the speech-token LLM: official llm.pt or Hugging Face form -> converted form -> TensorRT-LLM engine."""
