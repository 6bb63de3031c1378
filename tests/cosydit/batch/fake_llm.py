"""An LLM service that speaks the wire over real HTTP: it answers any prompt with a few speech tokens at once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from llm_service.vocab import COSYVOICE2
from tests.workers import QuietHandler, listening

SPEECH_TOKENS = 12


@dataclass
class FakeLLM:
    """Where it listens, and what it was asked."""

    url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)


@contextmanager
def running_llm() -> Iterator[FakeLLM]:
    """Serve on a free port until the context is left."""
    llm = FakeLLM()

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            self._answer("application/json", json.dumps({"data": [{"id": "fake"}]}))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            llm.bodies.append(body)
            ids = [COSYVOICE2.llm_id((body["seed"] + index) % 1000) for index in range(SPEECH_TOKENS)]
            answer = json.dumps({"choices": [{"text": "", "token_ids": ids, "finish_reason": "stop"}]})
            if not body["stream"]:
                return self._answer("application/json", answer)
            self._answer("text/event-stream", f"data: {answer}\n\ndata: [DONE]\n\n")

        def _answer(self, kind: str, text: str) -> None:
            self.send_response(200)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

    with listening(Handler) as port:
        llm.url = f"http://127.0.0.1:{port}"
        yield llm
