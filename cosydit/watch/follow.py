"""Reads the services' metrics again and again, and keeps as much of them as the view's window needs."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from cosydit.watch.scrape import EMPTY, Scrape, Window
from cosydit.watch.view import Picture, Service
from servicekit.clock import Clock

TIMEOUT_S = 2.0
_ERRORS = (urllib.error.URLError, OSError, http.client.HTTPException, ValueError)


class Follower:
    """Follows one endpoint."""

    def __init__(self, url: str, window_s: float, clock: Clock) -> None:
        """Read nothing yet; the view tells of the last `window_s` seconds, and of all time at its first reading."""
        self.url = url
        self._window_s = window_s
        self._clock = clock
        self._scrapes: deque[Scrape] = deque()

    def read(self) -> Service:
        """Read it once; what was kept is forgotten when it does not answer, as it may be another process then."""
        address = self.url.removeprefix("http://").removesuffix("/metrics")
        try:
            with urllib.request.urlopen(self.url, timeout=TIMEOUT_S) as answer:
                text = answer.read().decode()
            return Service(address, self._keep(Scrape.parse(text, self._clock.now())))
        except _ERRORS:
            self._scrapes.clear()
            return Service(address, None)

    def _keep(self, scrape: Scrape) -> Window:
        self._scrapes.append(scrape)
        while len(self._scrapes) > 2 and self._scrapes[1].at_s <= scrape.at_s - self._window_s:
            self._scrapes.popleft()
        return Window(self._scrapes[0] if len(self._scrapes) > 1 else EMPTY, scrape)


class Watch:
    """Follows all endpoints at once."""

    def __init__(
        self, gateways: Sequence[str], token2wav: Sequence[str], llm: Sequence[str], window_s: float, clock: Clock
    ) -> None:
        """Take the endpoints' URLs; close it at the end."""
        self._groups = [[Follower(url, window_s, clock) for url in urls] for urls in (gateways, token2wav, llm)]
        self._threads = ThreadPoolExecutor(max(1, sum(map(len, self._groups))), thread_name_prefix="watch")

    def look(self, title: str = "") -> Picture:
        """Read everything once."""
        pending = [[self._threads.submit(each.read) for each in group] for group in self._groups]
        gateways, token2wav, llm = ([reading.result() for reading in group] for group in pending)
        return Picture(gateways, token2wav, llm, title)

    def close(self) -> None:
        """End its threads."""
        self._threads.shutdown()
