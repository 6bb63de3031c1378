"""Triton's entry to token2wav; everything happens in `token2wav_service.serving.token2wav_model`."""

import triton_python_backend_utils as pb_utils

from servicekit.heap import exempt_startup_objects
from servicekit.logs import configure_logging, log_format_of
from token2wav_service.serving.token2wav_model import Token2WavModel


class TritonPythonModel:
    def initialize(self, args):
        configure_logging(log_format_of())
        self._model = Token2WavModel.load(pb_utils, args["model_config"])
        exempt_startup_objects()

    def execute(self, requests):
        self._model.execute(requests)

    def finalize(self):
        self._model.finalize()
