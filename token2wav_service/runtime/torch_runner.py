"""Runs batches through the plain modules of any family, on any device: tokens to mel in one forward, mel to audio.

States are values: a batch returns new ones and leaves the old ones unchanged. On CPU cores several chunks run side by
side, each in one thread: threads that share each operation wait for one another, and the more so beside an LLM.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from itertools import chain
from threading import Lock
from typing import Any

import torch

from token2wav_service.engine.runner import BesideRoom, ChunkOutcome, ChunkWork, Finish, ModelFacts
from token2wav_service.models.causal import FlowInput, VocoderInput
from token2wav_service.models.flow.flow_state import FlowVoice
from token2wav_service.models.flow.flow_stream import StreamFlow
from token2wav_service.models.vocoder.causal_vocoder_stream import CausalStreamVocoder
from token2wav_service.models.vocoder.vocoder_stream import StreamVocoder
from token2wav_service.runtime.cpu.packed_flow import PackedFlow
from token2wav_service.types import TokenChunk, VoiceFeatures


@dataclass(frozen=True)
class TorchState:
    """One stream's state."""

    voice: FlowVoice
    flow: Any
    """State of the flow; None before the first chunk."""
    vocoder: Any

    @property
    def num_bytes(self) -> int:
        """Memory it holds beyond what it shares with its voice."""
        return int(0 if self.flow is None else self.flow.num_bytes) + int(self.vocoder.num_bytes)


class ModelRunner:
    """Holds the models; holds no stream."""

    beside: BesideRoom | None = None
    """None: cores that are busy with one step have no time for another."""
    queues = False

    def __init__(
        self, flow: StreamFlow | PackedFlow, vocoder: StreamVocoder | CausalStreamVocoder, at_once: int = 1
    ) -> None:
        """Hold the models.

        Args:
            at_once: how many chunks of a batch are computed side by side, each by a thread of its own.
        """
        self.flow = flow
        self.vocoder = vocoder
        self._at_once = at_once
        self._beginning = Lock()
        """Streams of one voice share the states that they start from."""
        self._pool = ThreadPoolExecutor(at_once, "token2wav-chunks", initializer=partial(torch.set_num_threads, 1))
        self.facts = ModelFacts(flow.vocab_size, flow.lookahead, flow.stride, flow.hop_multiple)

    @torch.inference_mode()
    def prepare_voice(self, features: VoiceFeatures) -> FlowVoice:
        """Run a voice's prompt once."""
        arrays = (features.prompt_tokens, features.prompt_mel, features.speaker_embedding)
        return self.flow.prepare_voice(*map(torch.from_numpy, arrays))

    def open(self, voice: FlowVoice) -> TorchState:
        """Return the state of a new stream."""
        return TorchState(voice, None, self.vocoder.initial_state())

    def close(self, state: TorchState) -> None:
        """Nothing to do: a state is freed with its last reference."""

    def bucket(self, chunk: TokenChunk, state: TorchState) -> int:
        """All chunks share one program, whatever their sizes."""
        return 0

    def step_size(self, bucket: int, ready: int, is_crowded: bool) -> int:
        """A step takes them all."""
        return ready

    def launch(self, works: Sequence[ChunkWork], *, beside: bool = False) -> Finish:
        """See `Runner.launch`; what it returns computes."""
        return partial(self.run, works)

    def run(self, works: Sequence[ChunkWork]) -> list[ChunkOutcome]:
        """Run every chunk; the works' states are unchanged, also when this raises."""
        threads = torch.get_num_threads()
        if self._at_once == 1 or len(works) <= max(1, threads // 2):
            return self._run(works)
        by_length = sorted(range(len(works)), key=lambda index: len(works[index].token_ids))
        shares = [share for first in range(self._at_once) if (share := by_length[first :: self._at_once])]
        parts = [self._pool.submit(self._run, [works[index] for index in share]) for share in shares]
        wait(parts)  # NOTE: all of them, before a failure lets their states be run again
        torch.set_num_threads(threads)  # NOTE: the pool's threads have set it for threads to come, too
        made = dict(zip(chain(*shares), chain(*(part.result() for part in parts)), strict=True))
        return [made[index] for index in range(len(works))]

    @torch.inference_mode()
    def _run(self, works: Sequence[ChunkWork]) -> list[ChunkOutcome]:
        rows = [
            FlowInput(self._flow_state(w), torch.tensor(w.token_ids), w.state.voice.speaker, w.seed, w.is_last)
            for w in works
        ]
        mels, flows = self.flow.forward(rows)
        inputs = [VocoderInput(w.state.vocoder, mel, w.seed, w.is_last) for w, mel in zip(works, mels, strict=True)]
        samples, vocoders = self.vocoder.vocode(inputs)
        return [
            ChunkOutcome(wave.float().cpu().numpy(), TorchState(work.state.voice, flow, vocoder))
            for work, wave, flow, vocoder in zip(works, samples, flows, vocoders, strict=True)
        ]

    def _flow_state(self, work: ChunkWork) -> Any:
        if work.state.flow is not None:
            return work.state.flow
        hop = 0 if work.is_last else self.facts.new_tokens(len(work.token_ids), is_last=False)
        with self._beginning:
            return self.flow.begin(work.state.voice, hop)
