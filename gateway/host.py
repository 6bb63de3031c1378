"""The parts of one gateway that all doors and dialects use, and the limits of its connections."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field

from gateway.audio import AudioFormat
from gateway.delivery import DEFAULT_RUN_AHEAD_S
from gateway.lexicons import LexiconBook
from gateway.lifecycle.gate import Routes
from gateway.lifecycle.readiness import Readiness
from gateway.speech.speaker import Speaker
from gateway.voices.registry import VoiceRegistry
from servicekit.checkpoint_file import CheckpointDeclaration
from servicekit.clock import Clock

DEFAULT_MAX_BODY_BYTES = 1024 * 1024
DEFAULT_READER_TIMEOUT_S = 120.0
"""Default for HTTP and gRPC: players of files stop reading while they have minutes of audio ahead. The stream holds its
slots at both services until then."""
DEFAULT_MAX_CONTEXTS = 16
"""Default number of contexts: ElevenLabs allows 5; ours includes contexts that still speak after their client has left
them."""
DEFAULT_MAX_MESSAGE_BYTES = 256 * 1024
"""Default bound of a message: far more text than may wait to be spoken, in any script."""
DEFAULT_IDLE_TIMEOUT_S = 300.0
"""Default for connections with turns of their own: an assistant may listen, or be busy with its tools, for minutes."""
DEFAULT_SEND_TIMEOUT_S = 30.0
"""Default for WebSockets: shorter than the server's keepalive, which closes the connection without an error message."""


@dataclass(frozen=True)
class HostLimits:
    """How long and how much a connection may take."""

    run_ahead_s: float = DEFAULT_RUN_AHEAD_S
    """Seconds of audio sent before it is played, where the gateway can't see an interruption; see `Pacer`."""
    reader_timeout_s: float = DEFAULT_READER_TIMEOUT_S
    """Seconds that HTTP and gRPC wait for a reader who makes no room; see `gateway.dialects.answers.sent`."""
    max_body_bytes: int = DEFAULT_MAX_BODY_BYTES
    """Largest body of an HTTP request that asks for speech."""
    max_contexts: int = DEFAULT_MAX_CONTEXTS
    """Contexts open on one WebSocket at once, including those that speak their last words."""
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES
    """Largest WebSocket message of the ElevenLabs dialect."""
    idle_timeout_s: float = DEFAULT_IDLE_TIMEOUT_S
    """Seconds that a WebSocket may stay without a message or speech, unless its URL says otherwise."""
    send_timeout_s: float = DEFAULT_SEND_TIMEOUT_S
    """Seconds that a WebSocket waits for a reader who makes no room; its streams hold both services until then."""


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
    routes: Routes | None = None
    """The replicas behind the pipeline; None where the pipeline speaks to fixed services."""
    drain: Callable[[], Awaitable[None]] | None = None
    """Lets open streams end before the doors close."""
