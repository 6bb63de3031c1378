"""Batches at full speed: state in pools, fused kernels, CUDA graphs. For GPUs; tested on the CPU by interpretation."""
