"""The DiT in TensorRT engines that were built beforehand.

Written to TensorRT's documented API and driven by a fake in tests; not run where this is developed.
"""
