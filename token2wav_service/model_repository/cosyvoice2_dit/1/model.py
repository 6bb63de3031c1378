"""Triton's drop-in entry, text in and speech out; everything happens in `drop_in.py` beside this file."""

import logging

import triton_python_backend_utils as pb_utils
from drop_in import load_model


class TritonPythonModel:
    def initialize(self, args):
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        self._model = load_model(pb_utils, args["model_config"])

    def execute(self, requests):
        return self._model.execute(requests)

    def finalize(self):
        self._model.finalize()
