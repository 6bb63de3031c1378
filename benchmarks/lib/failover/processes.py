"""The system with several token2wav servers, whose processes can be killed, stopped and started again one by one."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from cosydit.stack.process import ServiceProcess
from cosydit.stack.stack import LocalStack, StackOptions

READY_TIMEOUT_S = 180.0
_POLL_S = 0.05
LLM_INDEX = 0


class Processes:
    """The services of a running stack; whoever started the stack stops it, restarted services included."""

    def __init__(self, stack: LocalStack) -> None:
        """Take over a stack that runs."""
        self._stack = stack

    @property
    def options(self) -> StackOptions:
        """What runs where."""
        return self._stack.options

    @property
    def token2wav_servers(self) -> int:
        """How many there are."""
        return 1 + len(self.options.replicas)

    def llm(self) -> ServiceProcess:
        """The LLM service."""
        return self._stack.services[LLM_INDEX]

    def token2wav(self, number: int) -> ServiceProcess:
        """A token2wav server by its number, from 0."""
        return self._stack.services[LLM_INDEX + 1 + number]

    async def kill(self, service: ServiceProcess) -> None:
        """Have the kernel end a service at once: the process that serves, then who started it."""
        for pid in [*_descendants(service.pid), service.pid]:
            _send(pid, signal.SIGKILL)
        await self._until_gone(service)

    async def stop(self, service: ServiceProcess) -> None:
        """Ask a service to end, as a deployment does, and wait until it has."""
        _send(service.pid, signal.SIGTERM)
        await self._until_gone(service)

    async def start(self, service: ServiceProcess) -> None:
        """Start a service again, as a supervisor does, and wait until it is ready."""
        await asyncio.to_thread(service.stop)
        service.start()
        await asyncio.to_thread(service.wait_ready, READY_TIMEOUT_S)

    async def _until_gone(self, service: ServiceProcess) -> None:
        while service.returncode is None:
            await asyncio.sleep(_POLL_S)


def _descendants(pid: int) -> list[int]:
    try:
        children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
    return [each for child in children for each in (child, *_descendants(child))]


def _send(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass
