"""An LLM service in a thread: OpenAI-style completions with token ids, each answer held until it is released."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from llm_service.vocab import COSYVOICE2
from tests.workers import QuietHandler, listening

WAIT_S = 30.0
FIRST_TOKENS = 40
"""Enough for two windows, so that audio comes while the answer is held."""


class FakeLLMServer:
    """Speaks 40 tokens, waits while held, then speaks 10 more. Requests are told apart by their seed."""

    def __init__(self) -> None:
        self.seeds: list[int] = []
        self.bodies: list[dict[str, Any]] = []
        self.is_failing = False
        self._held: dict[int, threading.Event] = {}
        self._changed = threading.Condition()
        owner = self

        class Handler(QuietHandler):
            def do_GET(self) -> None:
                self._reply(200, {"object": "list", "data": [{"id": "speech", "object": "model"}]})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                owner.bodies.append(body)
                if owner.is_failing:
                    self._reply(503, {"error": {"message": "overloaded"}})
                    return
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.end_headers()
                for event in owner._answer(body["seed"]):
                    self.wfile.write(f"data: {event}\n\n".encode())
                    self.wfile.flush()

            def _reply(self, status: int, document: dict[str, Any]) -> None:
                data = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def handle(self) -> None:
                try:
                    super().handle()
                except OSError:
                    self.close_connection = True  # the caller left

        self._handler = Handler

    @contextmanager
    def running(self) -> Iterator[FakeLLMServer]:
        with listening(self._handler) as port:
            self.url = f"http://127.0.0.1:{port}"
            try:
                yield self
            finally:
                for event in list(self._held.values()):
                    event.set()

    def hold(self, *seeds: int) -> None:
        """Answers to these seeds stop after their first tokens."""
        for seed in seeds:
            self._held[seed] = threading.Event()

    def release(self, seed: int) -> None:
        self._held[seed].set()

    def wait_for(self, count: int) -> list[int]:
        """Return the seeds in order of arrival once there are `count`."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.seeds) >= count, WAIT_S), f"only {self.seeds} came"
            return list(self.seeds)

    def forget(self) -> None:
        self.is_failing = False
        self.seeds.clear()
        self.bodies.clear()
        self._held.clear()

    def _answer(self, seed: int) -> Iterator[str]:
        with self._changed:
            self.seeds.append(seed)
            self._changed.notify_all()
        yield _event([COSYVOICE2.llm_id(n) for n in range(FIRST_TOKENS)], None)
        if seed in self._held:
            self._held[seed].wait(WAIT_S)
        yield _event([COSYVOICE2.llm_id(n) for n in range(10)], "stop")
        yield "[DONE]"


def _event(token_ids: list[int], finish_reason: str | None) -> str:
    choice = {"index": 0, "text": "", "token_ids": token_ids, "finish_reason": finish_reason}
    return json.dumps({"id": "x", "object": "text_completion", "choices": [choice]})
