"""The parts of one gateway that all doors and dialects use, and the limits of its connections."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field

from gateway.audio import AudioFormat
from gateway.delivery import DEFAULT_RUN_AHEAD_S
from gateway.lexicons import LexiconBook
from gateway.lifecycle.readiness import Readiness
from gateway.speech.speaker import Speaker
from gateway.voices.registry import VoiceRegistry
from servicekit.checkpoint_file import CheckpointDeclaration
from servicekit.clock import Clock


@dataclass(frozen=True)
class HostLimits:
    """How long and how much a connection may take."""

    run_ahead_s: float = DEFAULT_RUN_AHEAD_S
    """Seconds of audio sent before it is played, where the gateway can't see an interruption; see `Pacer`."""
    reader_timeout_s: float = 120.0
    """Seconds that HTTP and gRPC wait for a reader who makes no room (see `gateway.dialects.answers.sent`): players of
    files stop reading while they have minutes of audio ahead. The stream holds slots at both services until then."""
    max_body_bytes: int = 1024 * 1024
    """Largest body of an HTTP request that asks for speech."""
    max_contexts: int = 16
    """Contexts open on one WebSocket at once, including those that speak their last words; ElevenLabs allows 5."""
    max_message_bytes: int = 256 * 1024
    """Largest WebSocket message of the ElevenLabs dialect: more text than may wait to be spoken, in any script."""
    idle_timeout_s: float = 300.0
    """Seconds that a WebSocket may stay without a message or speech, unless its URL says otherwise: an assistant may
    listen, or be busy with its tools, for minutes."""
    send_timeout_s: float = 30.0
    """Seconds that a WebSocket waits for a reader who makes no room, while its streams hold both services. Shorter than
    the server's keepalive, which closes the connection without an error message."""


@dataclass(frozen=True, kw_only=True)
class Host:
    """The parts of one gateway that its doors share; whoever made them closes them."""

    pipeline: Speaker
    voices: VoiceRegistry
    lexicons: LexiconBook = field(default_factory=lambda: LexiconBook({}))
    """Pronunciation dictionaries."""
    readiness: Readiness
    clock: Clock
    executor: Executor
    """Threads for codecs that take time."""
    encode_text: Callable[[str], list[int]]
    """The LLM's tokenizer; counts the tokens of a text."""
    default_format: AudioFormat = AudioFormat.WAV
    """Format of OpenAI requests that name none."""
    limits: HostLimits = field(default_factory=HostLimits)
    declaration: CheckpointDeclaration = field(default_factory=CheckpointDeclaration)
    """The checkpoint's declaration of itself."""
    drain: Callable[[], Awaitable[None]] | None = None
    """Lets open streams end before the doors close."""
