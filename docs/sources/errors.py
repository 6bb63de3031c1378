"""The table of error codes, from the one place that maps errors to wire codes."""

from __future__ import annotations

from gateway import errors
from sources.markdown import WARNING, code, table
from token2wav_service.contract import ErrorCode

_INTRODUCTION = """# Error codes

How each door reports an error. [Troubleshooting](../troubleshooting.md#by-error-code) says what each code means and
what to do.

- **HTTP** (OpenAI): a JSON body `{"error": {"message", "type", "param", "code"}}`. ElevenLabs' routes, and all
  addresses below `/v1/text-to-speech`, `/v1/voices`, `/v2/voices` and `/v1/user`, answer `{"detail": {"status",
  "message"}}`; a body of the wrong form gets 422 there, with a list of `{"loc", "msg", "type"}`. An error after the
  first audio breaks the connection. A wrong address or model gets 404 `not_found` or `model_not_found`, a wrong
  method 405 `method_not_allowed`.
- **WebSockets**: a message with the code and the text; see [WebSockets](websockets.md).
- **gRPC**: the status of the call; the trailing metadata `error-code` and `error-param` are for programs.
- **Triton** (`cosyvoice2_dit`): an error response whose message begins with the code of the column Triton and a
  colon.
"""


def page() -> str:
    """Return the page."""
    codes: dict[tuple[str, str, str], set[str]] = {}
    for status in errors._WIRE.values():
        answer = (str(status.http), status.grpc, code(status.triton.value))
        codes.setdefault(answer, set()).add(code(status.code))
    rows = [(*answer, ", ".join(sorted(names))) for answer, names in sorted(codes.items())]
    triton = ", ".join(code(each.value) for each in ErrorCode)
    after = f"token2wav itself answers with {triton}; see [Triton](triton.md#token2wav_dit)."
    return "\n\n".join((WARNING, _INTRODUCTION.strip(), table(("HTTP", "gRPC", "Triton", "codes"), rows), after)) + "\n"
