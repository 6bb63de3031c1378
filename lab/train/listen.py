"""Listens to every rung of a packed checkpoint: `python -m lab.train.listen`. Needs the teachers.

Word error rates (with pocketsphinx) and DNSMOS (with speechmos) of the same sentences. Each rung adds one model, so it
shows where sense and sound are lost:

    source    the teacher's audio
    vocoder   its mel, through the vocoder
    flow      its speech tokens, through flow and vocoder, in streaming windows
    llm       the text, through everything

The sentences are those of the other benchmarks, not the held-out ones: these are for choosing, those for judging.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from benchmarks.lib.word_errors import total, word_errors
from cosydit.certify.recognition import RATE_HZ, FloatArray, SphinxRecogniser
from demo_voice.unpack import BUNDLE, VOICES, unpack
from lab.ears.alignment import digit_agreement
from lab.ears.moonshine import Recogniser
from lab.ears.opinion import Critic, DnsMos, Opinion, mean_opinion
from lab.ears.speakers import rank_speakers, top1
from lab.train.make_voices import VOICES_OF
from lab.train.teachers.choices import TEACHERS, Engine, teachers_of
from lab.train.utterance import audio_16k
from llm_service.embedded.eager import eager_engine
from llm_service.embedded.engine import EngineLimits, SpeechLMEngine
from llm_service.embedded.model import SpeechLanguageModel
from llm_service.embedded.sampling import RepetitionGuard
from llm_service.embedded.types import GenerationRequest, SamplingParams
from llm_service.prompt import build_prompt, generation_bounds
from llm_service.text_encoder import load_text_encoder
from llm_service.vocab import COSYVOICE2
from servicekit.clock import SystemClock
from token2wav_service.build import build_engine
from token2wav_service.checkpoint.loader import load_vocoder
from token2wav_service.config import SynthesisPolicy, Token2WavConfig
from token2wav_service.contract import SAMPLE_RATE_HZ
from token2wav_service.features.audio import load_prompt_audio, resample, resample_16k_to_24k
from token2wav_service.features.mel import flow_mel_24k
from token2wav_service.features.prompt_models import PromptFeatureExtractor
from token2wav_service.models.causal import VocoderInput
from token2wav_service.models.vocoder.hift import HiFT
from token2wav_service.models.vocoder.vocoder_stream import StreamVocoder
from token2wav_service.offline import OfflineUtterance, synthesize_all
from token2wav_service.types import VoicePrompt

SENTENCES = BUNDLE.parent / "samples/english.txt"
RUNGS = ("source", "vocoder", "flow", "llm")
WINDOW_TOKENS = 25
_MAX_SEQUENCE_TOKENS = 1024


@dataclass(frozen=True)
class SamplingChoice:
    """How the LLM's tokens are drawn."""

    temperature: float
    top_p: float
    repetition_penalty: float
    ras_window_tokens: int
    """0: repetition-aware sampling is off."""


class Listener:
    """A checkpoint's models, opened by the services' own loaders."""

    def __init__(self, checkpoint: Path, voice: str, sampling: SamplingChoice) -> None:
        """Load everything."""
        self._model_dir = checkpoint / "token2wav"
        self._llm_dir = checkpoint / "llm"
        self._sampling = sampling
        prompt = load_prompt_audio((checkpoint / "voices" / f"{voice}.wav").read_bytes())
        self._prompt = VoicePrompt(prompt)
        self._transcript = (checkpoint / "voices" / f"{voice}.txt").read_text("utf-8").strip()
        self.extractor = PromptFeatureExtractor(self._model_dir)
        self._engine = build_engine(Token2WavConfig(model_dir=self._model_dir, num_threads=1), SystemClock())
        self._encode = load_text_encoder(self._llm_dir).encode
        self._llm = SpeechLanguageModel.load(self._llm_dir, "cpu", "float32")
        self._llm.allocate_cache(1, _MAX_SEQUENCE_TOKENS, rows_per_forward=1)

    @torch.inference_mode()
    def vocoded(self, audio_16k: FloatArray) -> FloatArray:
        """Return [N] at 24 kHz: the audio's mel through the vocoder."""
        mel = torch.from_numpy(flow_mel_24k(resample_16k_to_24k(audio_16k)).T.copy())
        hift = load_vocoder(self._model_dir)
        assert isinstance(hift, HiFT)
        vocoder = StreamVocoder(hift, SynthesisPolicy())
        (samples,), _, _ = vocoder.forward([VocoderInput(vocoder.initial_state(), mel, seed=0, is_last=True)])
        return np.asarray(samples.numpy(), np.float32)

    def spoken(self, token_ids: Sequence[int]) -> FloatArray:
        """Return [N] at 24 kHz: tokens through flow and vocoder, in streaming windows."""
        utterance = OfflineUtterance("one", tuple(token_ids), self._prompt)
        (speech,) = synthesize_all(self._engine, [utterance], WINDOW_TOKENS)
        if isinstance(speech.outcome, Exception):
            raise speech.outcome
        return speech.outcome

    def tokens_of_text(self, text: str, seed: int) -> list[int]:
        """Return the LLM's speech tokens for a text in the voice."""
        prompt = build_prompt(
            self._encode, self._transcript, text, self.extractor.tokens(self._prompt.samples).tolist()
        )
        bounds = generation_bounds(prompt.target_text_tokens)
        choice = self._sampling
        params = SamplingParams(
            max_tokens=min(bounds.max_tokens, _MAX_SEQUENCE_TOKENS - len(prompt.token_ids) - 1),
            seed=seed,
            min_tokens=bounds.min_tokens,
            temperature=choice.temperature,
            top_p=choice.top_p,
            repetition_penalty=choice.repetition_penalty,
        )
        limits = EngineLimits(1, _MAX_SEQUENCE_TOKENS)
        engine = eager_engine(self._llm, limits, RepetitionGuard(choice.ras_window_tokens), SystemClock())
        engine.add_request(GenerationRequest("one", prompt.token_ids, params))
        ids = [token_id for output in _outputs(engine) for token_id in output]
        return [COSYVOICE2.speech_id(token_id) for token_id in ids if COSYVOICE2.is_speech(token_id)]


def _outputs(engine: SpeechLMEngine) -> list[tuple[int, ...]]:
    found = []
    while engine.idle_s() == 0:
        for output in engine.step():
            if output.error is not None:
                raise output.error
            found.append(output.token_ids)
    return found


def _critic() -> Critic | None:
    try:
        return DnsMos()
    except ImportError:
        return None


def _recogniser() -> Recogniser | None:
    try:
        return SphinxRecogniser()
    except ImportError:
        return None


def listen(
    listener: Listener, engine: Engine, speaker: int, name: str, texts: Sequence[str], voices: Path
) -> dict[str, float]:
    """Return every rung's word error rate and DNSMOS, the round trip's equal digits, and the speakers told right.

    Args:
        listener: the checkpoint.
        engine: the teachers.
        speaker: which of them the voice is.
        name: of the voice.
        texts: to speak.
        voices: directory of the prompts among which the voice should be ranked first.
    """
    recogniser, critic = _recogniser(), _critic()
    prompts = {
        path.stem: listener.extractor.speaker_embedding(load_prompt_audio(path.read_bytes()))
        for path in voices.glob("*.wav")
    }
    errors: dict[str, list[tuple[str, str]]] = {rung: [] for rung in RUNGS}
    opinions: dict[str, list[Opinion]] = {rung: [] for rung in RUNGS}
    agreements, rankings = [], []
    for seed, text in enumerate(texts):
        audio = audio_16k(engine.speak(text, speaker))
        tokens = listener.extractor.tokens(audio).tolist()
        flow, llm = listener.spoken(tokens), listener.spoken(listener.tokens_of_text(text, seed))
        rungs = {
            "source": audio,
            "vocoder": _to_16k(listener.vocoded(audio)),
            "flow": _to_16k(flow),
            "llm": _to_16k(llm),
        }
        for rung, samples in rungs.items():
            if recogniser is not None:
                errors[rung].append((text, recogniser.transcribe(samples)))
            if critic is not None:
                opinions[rung].append(critic.opinion(samples))
        agreements.append(digit_agreement(tokens, listener.extractor.tokens(rungs["flow"]).tolist()))
        rankings.append(rank_speakers(name, listener.extractor.speaker_embedding(rungs["llm"]), prompts))
    rates = {f"wer_{rung}": total(word_errors(*pair) for pair in pairs).rate for rung, pairs in errors.items() if pairs}
    means = {rung: mean_opinion(heard) for rung, heard in opinions.items() if heard}
    scores = {f"p808_{rung}": mean.p808 for rung, mean in means.items()}
    scores |= {f"ovrl_{rung}": mean.overall for rung, mean in means.items()}
    return {**rates, **scores, "digits_kept": float(np.mean(agreements)), "speaker_top1": top1(rankings)}


def _to_16k(audio_24k: FloatArray) -> FloatArray:
    return resample(audio_24k, SAMPLE_RATE_HZ, RATE_HZ)


def main(argv: Sequence[str] | None = None) -> int:
    """Listen and print one JSON line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m lab.train.listen", description=__doc__.splitlines()[0])
    parser.add_argument("--bundle", type=Path, default=BUNDLE, help="packed weights (default %(default)s)")
    parser.add_argument("--teachers", choices=list(VOICES_OF), help="default: what the bundle says")
    parser.add_argument("--voices", type=Path, default=VOICES, help="prompt voices (default %(default)s)")
    parser.add_argument("--voice", default="default", help="bundled voice (default %(default)s)")
    parser.add_argument("--sentences", type=int, default=10, help="of demo_voice/samples (default %(default)s)")
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--top-p", type=float, default=0.95)
    parser.add_argument("--repetition-penalty", type=float, default=1.1)
    parser.add_argument("--ras-window", type=int, default=10, help="0 switches it off (default %(default)s)")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    texts = [line.partition("|")[2] for line in SENTENCES.read_text("utf-8").splitlines()][: args.sentences]
    taught_by = args.teachers or teachers_of(args.bundle)
    base = next(voice.base for voice in VOICES_OF[taught_by] if voice.name == args.voice)
    teachers = TEACHERS[taught_by]
    speaker = list(teachers.speakers).index(base)
    sampling = SamplingChoice(args.temperature, args.top_p, args.repetition_penalty, args.ras_window)
    with tempfile.TemporaryDirectory() as scratch:
        unpack(Path(scratch) / "checkpoint", args.bundle, args.voices)
        listener = Listener(Path(scratch) / "checkpoint", args.voice, sampling)
        figures = listen(listener, teachers.open(None), speaker, args.voice, texts, args.voices)
    rounded = {name: round(value, 4) for name, value in figures.items()}
    sys.stdout.write(json.dumps({"voice": args.voice, **vars(sampling), **rounded}) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
