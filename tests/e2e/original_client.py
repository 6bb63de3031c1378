"""A client as users of the original runtime wrote it: tritonclient and its tensors, nothing of ours.

python original_client.py ADDRESS WAV TRANSCRIPT TEXT   prints one line per audio chunk, then FINAL
"""

from __future__ import annotations

import queue
import sys
import uuid
import wave

import numpy as np
import tritonclient.grpc as grpcclient


def main() -> int:
    address, path, transcript, text = sys.argv[1:]
    with wave.open(path, "rb") as file:
        assert file.getframerate() == 16000
        samples = np.frombuffer(file.readframes(file.getnframes()), np.int16).astype(np.float32) / 32768
    inputs = [
        grpcclient.InferInput("reference_wav", [1, len(samples)], "FP32"),
        grpcclient.InferInput("reference_wav_len", [1, 1], "INT32"),
        grpcclient.InferInput("reference_text", [1, 1], "BYTES"),
        grpcclient.InferInput("target_text", [1, 1], "BYTES"),
    ]
    inputs[0].set_data_from_numpy(samples[None])
    inputs[1].set_data_from_numpy(np.array([[len(samples)]], np.int32))
    inputs[2].set_data_from_numpy(np.array([[transcript]], object))
    inputs[3].set_data_from_numpy(np.array([[text]], object))
    outputs = [grpcclient.InferRequestedOutput("waveform")]
    answers: queue.Queue = queue.Queue()  # type: ignore[type-arg]
    client = grpcclient.InferenceServerClient(url=address)
    client.start_stream(callback=lambda result, error: answers.put(error or result))
    client.async_stream_infer(
        "cosyvoice2_dit", inputs, request_id=str(uuid.uuid4()), outputs=outputs, enable_empty_final_response=True
    )
    while True:
        answer = answers.get(timeout=120)
        if isinstance(answer, Exception):
            print(f"ERROR {answer}", flush=True)
            return 1
        waveform = answer.as_numpy("waveform")
        if waveform is not None and waveform.size:
            print(f"CHUNK {waveform.dtype} {waveform.reshape(-1).shape[0]} {np.abs(waveform).max():.4f}", flush=True)
        if answer.get_response().parameters["triton_final_response"].bool_param:
            print("FINAL", flush=True)
            return 0


if __name__ == "__main__":
    sys.exit(main())
