"""What the served precision costs: fused kernels in float16 or bfloat16 against the plain modules in float32.

For every bucket of the slot runner: mel SNR and log-mel distance of the second chunk (so that history counts), and the
wave's SNR when both vocoders get the same float32 source (free-running waves differ by phase).
"""

from __future__ import annotations

import argparse
import copy
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from cosydit.bench.report import aligned_table, describe_environment, write_json
from token2wav_service.build import DTYPES
from token2wav_service.checkpoint.loader import load_flow, load_vocoder
from token2wav_service.checkpoint.make_random import make_random_token2wav
from token2wav_service.config import HistoryPolicy, SynthesisPolicy
from token2wav_service.contract import LOOKAHEAD_TOKENS, SPEECH_VOCAB_SIZE
from token2wav_service.engine.runner import ChunkWork
from token2wav_service.models.causal import FlowInput
from token2wav_service.models.config import FlowConfig, HiFTConfig
from token2wav_service.models.flow.flow import Flow
from token2wav_service.models.flow.flow_stream import StreamFlow
from token2wav_service.models.vocoder.hift import HiFT, fold_weight_norm
from token2wav_service.replay.vectors import snr_db
from token2wav_service.runtime.slots.pool import PoolSizes
from token2wav_service.runtime.slots.slot_runner import SlotRunner, StreamSlot
from token2wav_service.runtime.slots.slot_vocoder import SlotVocoder
from token2wav_service.runtime.slots.step_shapes import STREAM_BUCKETS, TOKEN_BUCKETS
from token2wav_service.runtime.slots.vocoder_network import VocoderNetwork
from token2wav_service.types import VoiceFeatures

PROMPT_TOKENS = 125
POLICY = SynthesisPolicy(history=HistoryPolicy.PROMPT_AND_RECENT)


@dataclass(frozen=True)
class Precision:
    """One bucket, the worst of its compared rows."""

    streams: int
    tokens: int
    mel_snr_db: float
    log_mel_distance: float
    """Mean absolute difference, natural log."""
    wave_snr_db: float


def main(argv: Sequence[str] | None = None) -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="JSON to write")
    parser.add_argument("--dtypes", nargs="*", default=["float16", "bfloat16"], help="dtypes to compare with float32")
    parser.add_argument("--commit", default=None, help="commit of the code that runs (default: as git says)")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as scratch:
        make_random_token2wav(Path(scratch), seed=0, flow=FlowConfig(), hift=HiFTConfig())
        flow, hift = load_flow(Path(scratch)), load_vocoder(Path(scratch))
    assert isinstance(flow, Flow) and isinstance(hift, HiFT)
    flow, hift = flow.cuda(), fold_weight_norm(hift).cuda()
    rows: dict[str, list[Precision]] = {}
    reference = Reference(StreamFlow(flow, POLICY), hift)
    for name in args.dtypes:
        served = copy.deepcopy(flow).to(DTYPES[name])
        runner = SlotRunner(served, copy.deepcopy(hift), POLICY, PoolSizes(STREAM_BUCKETS[-1], 100, 250, 900))
        rows[name] = [
            reference.compare(runner, streams, tokens)
            for tokens in TOKEN_BUCKETS
            for streams in STREAM_BUCKETS
            if streams <= runner.shapes.most_streams(tokens, is_crowded=True)
        ]
        print(name)
        header = ["streams", "tokens", "mel SNR dB", "log-mel distance", "wave SNR dB"]
        values = [[f"{value:.4g}" for value in asdict(row).values()] for row in rows[name]]
        print("\n".join(aligned_table([header, *values]).splitlines()))
    environment = describe_environment({k: v for k, v in vars(args).items() if k != "out"}, args.commit)
    content = {name: [asdict(row) for row in found] for name, found in rows.items()}
    write_json(args.out, {"precision": content, "environment": environment})
    return 0


class Reference:
    """The plain modules in float32, one stream at a time, and the first and last row of each batch."""

    def __init__(self, flow: StreamFlow, hift: HiFT) -> None:
        self.flow, self.hift = flow, hift
        rng = np.random.default_rng(0)
        self.features = VoiceFeatures(
            "voice",
            rng.integers(0, SPEECH_VOCAB_SIZE, PROMPT_TOKENS),
            rng.standard_normal((2 * PROMPT_TOKENS, 80), dtype=np.float32),
            rng.standard_normal(192, dtype=np.float32),
        )

    @torch.inference_mode()
    def compare(self, runner: SlotRunner, streams: int, tokens: int) -> Precision:
        """Compare one bucket's second chunk."""
        voice = runner.prepare_voice(self.features)
        states = [runner.open(voice) for _ in range(streams)]
        for start in (0, tokens):
            runner.run([_work(state, row, start, tokens) for row, state in enumerate(states)])
        served = runner.program(streams, tokens).mel
        assert served is not None and isinstance(runner.vocoder, SlotVocoder)
        worst = [self._row(row, tokens, served[row].T, runner.vocoder.network) for row in {0, streams - 1}]
        for state in states:
            runner.close(state)
        return Precision(streams, tokens, min(w[0] for w in worst), max(w[1] for w in worst), min(w[2] for w in worst))

    def _row(self, row: int, tokens: int, served: Tensor, network: VocoderNetwork) -> tuple[float, float, float]:
        with _exact():
            mel = self._mel(row, tokens)
            f0 = self.hift.f0_predictor(mel[None])
            phase, _ = self.hift.m_source.phase(f0)
            silence = torch.zeros(1, phase.shape[2], phase.shape[1], device=phase.device)
            source = self.hift.m_source(f0, silence, phase)
            wave = self.hift(mel[None], source)
        length = torch.tensor([mel.shape[1]], device=mel.device)
        served_wave = network.decode(served.T[None].to(network.dtype).contiguous(), source[:, 0].contiguous(), length)
        return snr_db(served, mel), float((served - mel).abs().mean()), snr_db(served_wave, wave)

    def _mel(self, row: int, tokens: int) -> Tensor:
        speaker = torch.from_numpy(self.features.speaker_embedding)
        state = self.flow.run_prompt(
            torch.from_numpy(self.features.prompt_tokens), torch.from_numpy(self.features.prompt_mel), speaker
        )
        mel = torch.empty(0)
        for start in (0, tokens):
            window = torch.tensor(_window(row, start, tokens))
            (mel,), (state,) = self.flow.forward([FlowInput(state, window, speaker, row, False)])
        return mel


class _exact:
    """Float32 products without TF32, while it lasts."""

    def __enter__(self) -> None:
        self._before = (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32)
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False

    def __exit__(self, *details: object) -> None:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = self._before


def _work(state: StreamSlot, row: int, start: int, tokens: int) -> ChunkWork:
    return ChunkWork(_window(row, start, tokens), False, row, state)


def _window(row: int, start: int, tokens: int) -> tuple[int, ...]:
    drawn = np.random.default_rng(row).integers(0, SPEECH_VOCAB_SIZE, 2 * tokens + LOOKAHEAD_TOKENS)
    return tuple(int(token) for token in drawn[start : start + tokens + LOOKAHEAD_TOKENS])


if __name__ == "__main__":
    sys.exit(main())
