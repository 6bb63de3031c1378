"""The replicas of both services, opened and closed together."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.llm.routed import RoutedSpeechLM
from gateway.routing.status import ReplicaStatus
from gateway.token2wav.routed import RoutedToken2Wav


@dataclass(frozen=True)
class Routes:
    """What stands behind one pipeline."""

    llm: RoutedSpeechLM
    token2wav: RoutedToken2Wav

    def start(self) -> None:
        """Begin to look for replicas and to probe them, inside the running event loop."""
        self.llm.start()
        self.token2wav.start()

    async def close(self) -> None:
        """Drop all connections."""
        await self.llm.close()
        await self.token2wav.close()

    def snapshot(self) -> tuple[ReplicaStatus, ...]:
        """Return the facts of every replica of both services."""
        return self.llm.snapshot() + self.token2wav.snapshot()
