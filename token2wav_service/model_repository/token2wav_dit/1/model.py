"""Triton's entry to token2wav; everything happens in `token2wav_service.triton.token2wav_model`."""

import logging

import triton_python_backend_utils as pb_utils

from token2wav_service.triton.token2wav_model import Token2WavModel


class TritonPythonModel:
    def initialize(self, args):
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        self._model = Token2WavModel.load(pb_utils, args["model_config"])

    def execute(self, requests):
        self._model.execute(requests)

    def finalize(self):
        self._model.finalize()
