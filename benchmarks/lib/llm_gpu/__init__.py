"""What `benchmarks/llm_gpu.py` measures: fidelity, steps, engine under load, and the lean stream of tokens."""
