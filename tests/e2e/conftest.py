"""Both services for real, on small random weights: a session's shared stack, and helpers to look inside."""

from __future__ import annotations

import re
import socket
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
import pytest

from cosydit.stack.checkpoint.checkpoints import CheckpointLayout
from cosydit.stack.stack import PORT_COUNT, LocalStack, Ports, StackOptions
from servicekit.settings import Given
from tests.workers import free_ports, random_checkpoint, wait_until

WAIT_S, SPEECH_S = 60.0, 120.0


@dataclass(frozen=True)
class RunningStack:
    """A stack and its counters."""

    stack: LocalStack

    @property
    def options(self) -> StackOptions:
        return self.stack.options

    def speak(self, text: str, headers: dict[str, str] | None = None, **fields: object) -> httpx.Response:
        """Ask the gateway for speech, of PCM unless a field of the body says otherwise."""
        url = f"{self.options.gateway_url}/v1/audio/speech"
        return httpx.post(url, json=_body(text, fields), headers=headers, timeout=SPEECH_S, trust_env=False)

    def leave(self, text: str) -> None:
        """Ask for a text and go away at its first bytes."""
        url = f"{self.options.gateway_url}/v1/audio/speech"
        with httpx.Client(timeout=SPEECH_S, trust_env=False) as client:
            with client.stream("POST", url, json=_body(text, {})) as answer:
                next(answer.iter_bytes())

    def token2wav_metric(self, name: str) -> float:
        return read_metric(f"http://127.0.0.1:{self.options.ports.triton_metrics}/metrics", f"cosydit_token2wav_{name}")

    def llm_metric(self, name: str) -> float:
        return read_metric(f"{self.options.llm_url}/metrics", f"cosydit_llm_{name}")

    def wait_idle(self) -> None:
        """Return when neither service holds anything of any request."""
        wait_until(lambda: self.token2wav_metric("open_streams") == 0, "token2wav's streams ending")
        wait_until(lambda: self.token2wav_metric("state_bytes") == 0, "token2wav's state being freed")
        wait_until(lambda: self.llm_metric("requests_running") == 0, "the LLM's requests ending")


def _body(text: str, fields: dict[str, object]) -> dict[str, object]:
    return {"model": "cosydit", "input": text, "voice": "default", "response_format": "pcm", **fields}


def read_metric(url: str, name: str) -> float:
    with urllib.request.urlopen(url, timeout=WAIT_S) as response:
        match = re.search(rf"^{re.escape(name)} (\S+)$", response.read().decode(), re.MULTILINE)
    assert match, f"no metric {name} at {url}"
    return float(match[1])


def make_options(checkpoint: CheckpointLayout, work_dir: Path, **settings: str) -> StackOptions:
    ports = Ports(*free_ports(PORT_COUNT))
    # A busy machine is slower than speech, and everybody is to be let in all the same. Chunks of the same cuts in every
    # run, whatever the load: waveforms are compared.
    let_in: Given = {"admission_wait_s": "60", "dynamic_chunk_strategy": "exponential"}
    settings = {"BLS_INSTANCE_NUM": "2", **settings}
    return StackOptions(checkpoint, work_dir, ports, settings, gateway=let_in)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> CheckpointLayout:
    return CheckpointLayout.under(random_checkpoint(tmp_path_factory))


@pytest.fixture(scope="session")
def running(checkpoint: CheckpointLayout, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStack]:
    """A stack that asks for no address beyond this host's: whatever else it asks for would come to a proxy."""
    options = make_options(checkpoint, tmp_path_factory.mktemp("stack"))
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        with ExitStack() as stopping:
            with pytest.MonkeyPatch.context() as patch:  # only of the services: other tests may ask for what they like
                patch.delenv("ORT_DISABLE_TELEMETRY", raising=False)
                patch.delenv("DO_NOT_TRACK", raising=False)
                for scheme in ("http", "https", "all", "grpc"):
                    patch.setenv(f"{scheme}_proxy", f"http://127.0.0.1:{proxy.getsockname()[1]}")
                patch.setenv("no_proxy", "127.0.0.1,localhost")
                stack = stopping.enter_context(LocalStack(options, with_gateway=True))
            yield RunningStack(stack)
        proxy.settimeout(0)
        with pytest.raises(BlockingIOError), proxy.accept()[0] as asked:
            pytest.fail(f"a service asked for {asked.recv(200)!r}")


@pytest.fixture
def idle_after(running: RunningStack) -> Iterator[RunningStack]:
    """The shared stack; the test fails if it leaves anything behind."""
    yield running
    running.wait_idle()


def pcm_to_floats(pcm: bytes) -> np.ndarray:  # type: ignore[type-arg]
    return np.frombuffer(pcm, "<i2").astype(np.float32) / 32767
