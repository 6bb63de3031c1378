"""The Triton model of the original runtime, `cosyvoice2_dit`: text in, speech out, its tensor names."""
