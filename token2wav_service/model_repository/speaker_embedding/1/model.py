"""Triton's entry to the prompt's speaker embedding; all happens in `token2wav_service.serving.feature_models`."""

import triton_python_backend_utils as pb_utils

from servicekit.logs import configure_logging, log_format_of
from token2wav_service.serving.feature_models import SpeakerEmbeddingModel


class TritonPythonModel:
    def initialize(self, args):
        configure_logging(log_format_of())
        self._model = SpeakerEmbeddingModel.load(pb_utils, args["model_config"])

    def execute(self, requests):
        return self._model.execute(requests)
