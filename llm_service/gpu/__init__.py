"""The speech-token LLM on a GPU: kernels, CUDA graphs, the sampler on the device, and the engine above them."""
