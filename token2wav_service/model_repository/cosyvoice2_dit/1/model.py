"""Triton's drop-in entry, text in and speech out; all happens in `gateway.dialects.cosyvoice2_dit`."""

import triton_python_backend_utils as pb_utils

from gateway.dialects.cosyvoice2_dit.drop_in import load_model
from servicekit.heap import exempt_startup_objects
from servicekit.logs import configure_logging, log_format_of


class TritonPythonModel:
    def initialize(self, args):
        configure_logging(log_format_of())
        self._model = load_model(pb_utils, args["model_config"])
        exempt_startup_objects()

    def execute(self, requests):
        return self._model.execute(requests)

    def finalize(self):
        self._model.finalize()
