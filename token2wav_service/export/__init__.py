"""Turns a checkpoint into ONNX files that carry no Python: what each graph takes and gives, and how it is made."""
