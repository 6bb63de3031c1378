"""The estimators and the vocoder's convolutions in engines of TensorRT that were built beforehand.

Tests build engines with the real TensorRT for RTX and run none, which takes a GPU: our own modules stand for them.
"""
