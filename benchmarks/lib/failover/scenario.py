"""What is done to the replicas while callers listen, and the account of it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.lib.failover.callers import EXACT_DB, Callers, Heard, snr_db
from benchmarks.lib.failover.processes import Processes
from cosydit.stack.process import ServiceProcess


@dataclass(frozen=True)
class StepReport:
    """One thing done, and what the callers heard."""

    name: str
    requests: int
    lost: int
    """Requests that did not get their whole audio."""
    different: int
    """Requests whose audio is further from the unbroken run's than the bound, or of another length."""
    worst_snr_db: float
    """Of those with the unbroken run's number of samples."""
    longest_pause_s: float
    slowest_s: float
    failovers: int
    """Streams and answers that another replica, or the same one later, went on with."""
    errors: tuple[str, ...]
    """The first few."""

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return asdict(self)


class Scenario:
    """Steps over one running stack; the first one sets what is expected of the others."""

    def __init__(self, processes: Processes, callers: Callers, count: int, bound_db: float) -> None:
        """Do nothing yet.

        Args:
            processes: to be killed and restarted.
            callers: of its gateway.
            count: callers at the same time.
            bound_db: least SNR of audio that counts as the unbroken run's.
        """
        self._processes = processes
        self._callers = callers
        self._count = count
        self._bound_db = bound_db
        self._expected: Mapping[int, Heard] = {}

    async def unbroken(self) -> StepReport:
        """Let all speak once with nobody disturbed."""
        heard = await self._callers.all_once(self._count)
        self._expected = {each.seed: each for each in heard}
        return self._report("unbroken", heard, 0)

    async def kill_token2wav(self, number: int = 1, comes_back: bool = True) -> StepReport:
        """SIGKILL one token2wav server in mid-stream; it stays away until the end of the step, or for good."""
        service = self._processes.token2wav(number)
        report = await self._kill("SIGKILL of a token2wav server", service, starts_again=False)
        if comes_back:
            await self._processes.start(service)
        return report

    async def kill_llm(self) -> StepReport:
        """SIGKILL the only LLM in mid-stream and start it again at once."""
        return await self._kill("SIGKILL of the LLM", self._processes.llm(), starts_again=True)

    async def rolling_restart(self, servers: int | None = None) -> StepReport:
        """Stop and start one token2wav server after the other while all speak again and again.

        Args:
            servers: only so many of them; None: all.
        """
        is_done = False
        before = self._failovers()
        speaking = asyncio.create_task(self._callers.again_and_again(self._count, lambda: is_done))
        try:
            for number in range(self._processes.token2wav_servers if servers is None else servers):
                service = self._processes.token2wav(number)
                await self._processes.stop(service)
                await self._processes.start(service)
        finally:
            is_done = True
            heard = await speaking
        return self._report("rolling restart of token2wav", heard, self._failovers() - before)

    async def _kill(self, name: str, service: ServiceProcess, starts_again: bool) -> StepReport:
        before = self._failovers()
        speaking = asyncio.create_task(self._callers.all_once(self._count))
        await asyncio.sleep(0)
        await self._callers.first_audio.wait()
        await self._processes.kill(service)
        if starts_again:
            await self._processes.start(service)
        heard = await speaking
        return self._report(name, heard, self._failovers() - before)

    def _report(self, name: str, heard: list[Heard], failovers: int) -> StepReport:
        lost = [each for each in heard if each.error is not None or not len(each.samples)]
        whole = [each for each in heard if each.error is None and each.seed in self._expected]
        ratios = [snr_db(each.samples, self._expected[each.seed].samples) for each in whole]
        return StepReport(
            name=name,
            requests=len(heard),
            lost=len(lost),
            different=sum(ratio < self._bound_db for ratio in ratios),
            worst_snr_db=round(min((ratio for ratio in ratios if ratio > -EXACT_DB), default=EXACT_DB), 1),
            longest_pause_s=round(max(each.longest_pause_s for each in heard), 3),
            slowest_s=round(max(each.seconds for each in heard), 3),
            failovers=failovers,
            errors=tuple(each.error or "no audio" for each in lost[:3]),
        )

    def _failovers(self) -> int:
        """Count what the gateway's log says of streams and answers that went on."""
        log = (self._processes.options.log_dir / "gateway.log").read_text(errors="replace")
        return log.count(" goes on at ") + log.count("asking again for an answer")
