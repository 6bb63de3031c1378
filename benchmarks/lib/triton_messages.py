"""Triton's inference messages as a server reads and writes them: what stands in for Triton's own server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from tritonclient.grpc import service_pb2
from tritonclient.utils import deserialize_bytes_tensor, np_to_triton_dtype, serialize_byte_tensor, triton_to_np_dtype

Tensors = dict[str, npt.NDArray[Any]]
"""By name; BYTES are object arrays of bytes."""


def read_tensors(request: Any) -> Tensors:
    """Return what a ModelInferRequest with raw contents carries, every tensor in its shape."""
    tensors: Tensors = {}
    for tensor, raw in zip(request.inputs, request.raw_input_contents, strict=True):
        if tensor.datatype == "BYTES":
            flat = deserialize_bytes_tensor(raw)
        else:
            flat = np.frombuffer(raw, triton_to_np_dtype(tensor.datatype))
        tensors[tensor.name] = flat.reshape(tuple(tensor.shape))
    return tensors


def text_of(tensor: npt.NDArray[Any]) -> str:
    """Return a BYTES tensor's only value as text; what is no UTF-8 is replaced."""
    value: bytes = tensor.item()
    return value.decode(errors="replace")


def bytes_tensor(value: bytes) -> npt.NDArray[Any]:
    """Return a BYTES tensor, shape (1,)."""
    return np.array([value], np.object_)


def stream_response(request_id: str, tensors: Mapping[str, npt.NDArray[Any]], is_final: bool = True) -> Any:
    """Return a ModelStreamInferResponse that carries these tensors.

    Args:
        request_id: of the request that it answers.
        tensors: by name; BYTES are object arrays of bytes.
        is_final: the request gets no further response (Triton's parameter `triton_final_response`).
    """
    response = service_pb2.ModelInferResponse(id=request_id)
    for name, value in tensors.items():
        response.outputs.add(name=name, datatype=np_to_triton_dtype(value.dtype), shape=value.shape)
        raw = serialize_byte_tensor(value).item() if value.dtype == np.object_ else value.tobytes()
        response.raw_output_contents.append(raw)
    response.parameters["triton_final_response"].bool_param = is_final
    return service_pb2.ModelStreamInferResponse(infer_response=response)
