"""Converts the speech-token LLM: official llm.pt or Hugging Face form -> the form that vLLM and TensorRT-LLM serve."""
