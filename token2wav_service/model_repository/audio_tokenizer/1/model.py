"""Triton's entry to the prompt's speech tokens; everything happens in `token2wav_service.serving.feature_models`."""

import triton_python_backend_utils as pb_utils

from servicekit.logs import configure_logging, log_format_of
from token2wav_service.serving.feature_models import AudioTokenizerModel


class TritonPythonModel:
    def initialize(self, args):
        configure_logging(log_format_of())
        self._model = AudioTokenizerModel.load(pb_utils, args["model_config"])

    def execute(self, requests):
        return self._model.execute(requests)
