"""Builds TensorRT engines from exported graphs, and certifies their numerics.

Written to TensorRT's documented API and driven by a fake in tests; not run where this is developed.
"""
