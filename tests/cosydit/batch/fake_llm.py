"""An LLM service that speaks the wire over real HTTP: it answers any prompt with a few speech tokens at once."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from llm_service.vocab import llm_id_from_speech_id

SPEECH_TOKENS = 12


class FakeLLM:
    """Serves on a free port while its context is open; counts what it was asked."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        bodies = self.bodies

        class Handler(_Handler):
            requests_seen = bodies

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> FakeLLM:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    requests_seen: list[dict[str, Any]]

    def do_GET(self) -> None:
        self._answer("application/json", json.dumps({"data": [{"id": "fake"}]}))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.requests_seen.append(body)
        ids = [llm_id_from_speech_id((body["seed"] + index) % 1000) for index in range(SPEECH_TOKENS)]
        answer = json.dumps({"choices": [{"text": "", "token_ids": ids, "finish_reason": "stop"}]})
        if not body["stream"]:
            return self._answer("application/json", answer)
        self._answer("text/event-stream", f"data: {answer}\n\ndata: [DONE]\n\n")

    def log_message(self, format: str, *args: object) -> None:
        """Stay silent."""

    def _answer(self, kind: str, text: str) -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())
