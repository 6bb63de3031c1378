"""Checks of the whole system, started as `cosydit serve` starts it: one sentence through every door."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from cosydit.certify.audio_faults import FRAME_SECONDS, clipped_samples, longest_run, silent_frames
from cosydit.certify.check import CheckFailedError, Findings
from cosydit.certify.checks import STACK
from cosydit.certify.context import TEXTS, CheckContext, FloatArray, keep_audio, samples_of
from cosydit.certify.doors import DOORS, Door
from cosydit.cli.stack_options import choice_lines, gpu_shared
from cosydit.stack.host import find_host, for_host, with_served_form
from cosydit.stack.stack import PORT_COUNT, LocalStack, Ports, StackOptions
from llm_service.vocab import SPEECH_TOKENS_PER_SECOND
from servicekit.gpu_host import AUTO
from token2wav_service.contract import SAMPLE_RATE_HZ

READY_TIMEOUT_S = 600.0
LEAST_TOKENS_A_LETTER, MOST_TOKENS_A_LETTER = 0.7, 4.0
"""Bounds of 25 Hz speech tokens for each letter; English takes about 1.6."""
LONGEST_SILENCE_S = 1.5
LARGEST_SILENT_SHARE = 0.6
LARGEST_CLIPPED_SHARE = 0.001
LEAST_SECONDS = 0.2


@dataclass(frozen=True)
class RunningStack:
    """The services and where their doors are."""

    stack: LocalStack
    ready_s: float
    wyoming_port: int
    chosen: list[str]
    """Settings chosen for this host, a line each."""

    @property
    def options(self) -> StackOptions:
        """What runs and where."""
        return self.stack.options


def running(context: CheckContext) -> RunningStack:
    """Return the whole system, started by the first check that asks."""
    return context.shared(STACK, partial(_started, context))


def check_start(context: CheckContext, found: Findings) -> None:
    """All services become ready."""
    started = running(context)
    found.tell("ready after", started.ready_s, "s")
    for line in [*started.chosen, *started.stack.describe()]:
        found.note(line)


def check_door(context: CheckContext, found: Findings, name: str) -> None:
    """One sentence: when its first audio comes, how long it is, and whether anything is wrong with it."""
    started = running(context)
    _spoken(DOORS[name], started)  # what the first request of a door loads is not its speed
    ttfa_s, total_s, samples = _spoken(DOORS[name], started)
    keep_audio(context, found, f"door-{name}", samples)
    _judge(context, found, samples)
    found.tell("time to first audio", 1000 * ttfa_s, "ms")
    found.tell("seconds spent a second of audio", total_s / (len(samples) / SAMPLE_RATE_HZ))


def _judge(context: CheckContext, found: Findings, samples: FloatArray) -> None:
    """Keep what is wrong with the audio of the sentence; of random weights only its length says anything."""
    seconds = len(samples) / SAMPLE_RATE_HZ
    found.at_least("audio", seconds, LEAST_SECONDS, "s")
    rate = seconds * SPEECH_TOKENS_PER_SECOND / sum(map(str.isalnum, TEXTS[0]))
    if not context.plan.is_audible:
        found.tell("tokens a letter", rate)
        return
    silent = silent_frames(samples, SAMPLE_RATE_HZ)
    found.at_least("tokens a letter", rate, LEAST_TOKENS_A_LETTER)
    found.at_most("tokens a letter", rate, MOST_TOKENS_A_LETTER)
    found.at_most("longest silence", longest_run(silent) * FRAME_SECONDS, LONGEST_SILENCE_S, "s")
    found.at_most("silent share", float(silent.mean()), LARGEST_SILENT_SHARE)
    found.at_most("clipped share", clipped_samples(samples) / len(samples), LARGEST_CLIPPED_SHARE)


@contextmanager
def _started(context: CheckContext) -> Iterator[RunningStack]:
    *ports, wyoming_port = context.ports(PORT_COUNT + 1)
    host = find_host(context.plan.device)
    options = StackOptions(
        checkpoint=context.checkpoint,
        work_dir=context.scratch("stack"),
        ports=Ports(*ports),
        settings=context.plan.settings,
        ready_timeout_s=READY_TIMEOUT_S,
        llm_backend=AUTO,
        gateway={"wyoming_port": str(wyoming_port)},
    )
    options = with_served_form(for_host(options, host))
    stack = LocalStack(options, with_gateway=True)
    began = time.perf_counter()
    try:
        with gpu_shared(options, host) as mps, stack:
            yield RunningStack(stack, time.perf_counter() - began, wyoming_port, choice_lines(options, host, mps))
    finally:  # the folder of the logs goes away
        context.log_dir.mkdir(parents=True, exist_ok=True)
        for path in options.log_dir.glob("*.log"):
            (context.log_dir / f"stack_{path.name}").write_bytes(path.read_bytes())


def _spoken(door: Door, started: RunningStack) -> tuple[float, float, FloatArray]:
    """Return seconds to the first audio, seconds to the last, and the samples [N]."""
    began = time.perf_counter()
    pieces: list[tuple[float, bytes]] = []
    door(started.options, started.wyoming_port, TEXTS[0], lambda pcm: pieces.append((time.perf_counter() - began, pcm)))
    total_s = time.perf_counter() - began
    heard = [(at_s, pcm) for at_s, pcm in pieces if pcm]
    if not heard:
        raise CheckFailedError("the answer ended without any audio; see the services' logs")
    return heard[0][0], total_s, samples_of([pcm for _, pcm in heard])
