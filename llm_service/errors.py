"""What can go wrong in the LLM service. Knows nothing of HTTP except each error's status."""

from __future__ import annotations

from servicekit.logs import PlainError


class LLMServiceError(PlainError):
    """Base of all errors of this package."""


class VocabularyError(LLMServiceError):
    """An id or a piece of text is not a speech token."""


class PromptError(LLMServiceError):
    """No prompt can be made of these texts and tokens."""


class PromptTooLongError(PromptError):
    """The text needs more speech tokens than one generation may have."""


class LLMConfigError(LLMServiceError):
    """A setting is unknown, out of range, or has no meaning for the chosen backend."""


class CheckpointError(LLMServiceError):
    """A model or tokenizer directory is incomplete, or numbers its tokens otherwise."""


class BackendUnavailableError(LLMServiceError):
    """The program that a backend runs is not installed."""


class EngineError(LLMServiceError):
    """Base of what the embedded engine raises; `http_status` and `kind` are what a client sees."""

    http_status = 500
    kind = "server_error"


class InvalidGenerationError(EngineError):
    """The request can't be run as asked; nothing was changed."""

    http_status = 400
    kind = "invalid_request_error"


class QueueFullError(EngineError):
    """All slots and queue places are taken, or no more can be answered in time; retry later."""

    http_status = 429
    kind = "rate_limit_error"

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        """Keep the expected seconds until there is room."""
        super().__init__(message)
        self.retry_after_s = retry_after_s


class DeadlineExceededError(EngineError):
    """The answer had not ended when its caller's deadline came."""

    http_status = 504
    kind = "deadline_exceeded"


class LLMStoppedError(EngineError):
    """The engine is not running: shutting down, or failed."""

    http_status = 503
    kind = "service_unavailable"


class GenerationFailedError(EngineError):
    """This request failed while it ran; others go on."""
