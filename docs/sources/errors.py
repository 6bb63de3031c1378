"""The table of error codes, from the one place that maps errors to wire codes."""

from __future__ import annotations

from gateway import errors
from sources.markdown import WARNING, code, table
from token2wav_service.contract import ErrorCode

_INTRODUCTION = """# Error codes

This page lists the error codes and how each door reports them. [Troubleshooting](../troubleshooting.md) says what to
do about each code. The source is `gateway/errors.py`.

- **HTTP** (OpenAI): a JSON body `{"error": {"message", "type", "param", "code"}}`. ElevenLabs' routes, and all
  addresses below `/v1/text-to-speech`, `/v1/voices`, `/v2/voices` and `/v1/user`, answer `{"detail": {"status",
  "message"}}`; there a body of the wrong form gets 422, with a list of `{"loc", "msg", "type"}`. An error after the
  first audio breaks the connection.
- **WebSockets**: a message with the code and the text; see [WebSockets](websockets.md).
- **gRPC**: the status of the call; the trailing metadata `error-code` and `error-param` are for programs.
- **Triton** (`cosyvoice2_dit`): an error response whose message begins with the code and a colon.
"""


def page() -> str:
    """Return the page."""
    rows: dict[str, tuple[str, str, str, str, str]] = {}
    for kind, status in errors._WIRE.items():
        meaning = (kind.__doc__ or "").splitlines()[0]
        if kind is errors.GatewayError:
            meaning = "A fault inside the gateway."
        if status.code not in rows or rows[status.code][-1].startswith("Base of"):
            rows[status.code] = (code(status.code), str(status.http), status.grpc, code(status.triton.value), meaning)
    head = ("code", "HTTP", "gRPC", "Triton", "meaning")
    triton = ", ".join(code(each.value) for each in ErrorCode)
    after = f"token2wav itself answers with {triton}; see [Triton](triton.md#token2wav_dit)."
    return "\n\n".join((WARNING, _INTRODUCTION.strip(), table(head, sorted(rows.values())), after)) + "\n"
