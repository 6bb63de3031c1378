"""What the WebSocket dialects speak with, and their limits."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.dialects.common.speech_host import SpeechHost

DEFAULT_MAX_CONTEXTS = 16
"""ElevenLabs allows 5; here those count too that still speak near real time after their client has turned away."""
DEFAULT_MAX_MESSAGE_BYTES = 256 * 1024
"""Far more text than may wait to be spoken, whatever its script."""
DEFAULT_IDLE_TIMEOUT_S = 30.0
DEFAULT_SEND_TIMEOUT_S = 30.0
"""Less than the server's keepalive takes to notice a reader who stands still, and does not tell of."""


@dataclass(frozen=True)
class SocketHost(SpeechHost):
    """The gateway's parts that a socket needs, and its limits."""

    max_contexts: int = DEFAULT_MAX_CONTEXTS
    """On one connection at once, those that speak their last words included."""
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES
    idle_timeout_s: float = DEFAULT_IDLE_TIMEOUT_S
    """Without a message or speech, where the dialect's URL has no say in it."""
    send_timeout_s: float = DEFAULT_SEND_TIMEOUT_S
    """For a reader to make room for the next message; whoever speaks for it holds both services until then."""
