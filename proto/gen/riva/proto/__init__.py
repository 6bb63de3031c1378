"""Riva's messages, in a pool of their own: NVIDIA's client may have others of the same names."""

from google.protobuf.descriptor_pool import DescriptorPool

POOL = DescriptorPool()
