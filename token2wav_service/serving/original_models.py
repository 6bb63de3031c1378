"""The Triton models `token2wav` and `vocoder` of the original runtime's other scripts, with their tensors.

For clients that were written against them: one request is one pass of the plain modules over everything that was sent,
one after another, without the batching of the engine. `token2wav` of CosyVoice2 gives audio; that of CosyVoice3 mel,
which `vocoder` turns into audio. They load the checkpoint for themselves; the setting `ORIGINAL_MODELS` asks for them.

Source: specification of the flows, section 11; differs in that CosyVoice2's vocoder states are bounded in number.
"""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from token2wav_service.build import DTYPES
from token2wav_service.checkpoint.loader import LoadedModels, load_models
from token2wav_service.checkpoint.spk2info import OriginalVoice, read_spk2info
from token2wav_service.config import Token2WavConfig
from token2wav_service.contract import LOOKAHEAD_TOKENS, SPEECH_VOCAB_SIZE
from token2wav_service.errors import CheckpointError, InvalidRequestError
from token2wav_service.models.causal import VocoderInput
from token2wav_service.models.flow.any_flow import AnyFlow
from token2wav_service.models.noise import frozen_normal
from token2wav_service.models.vocoder.causal_hift import CausalHiFT
from token2wav_service.models.vocoder.causal_vocoder_stream import CausalStreamVocoder
from token2wav_service.models.vocoder.hift import HiFT, fold_weight_norm
from token2wav_service.models.vocoder.vocoder_stream import StreamVocoder, VocoderState
from token2wav_service.python_backend.inputs import OneByOneModel, PbUtils, RequestInputs
from token2wav_service.python_backend.server_process import read_parameters
from token2wav_service.types import FloatArray

TOKEN_OFFSET = 151_663
"""Number that CosyVoice2's clients add to speech tokens: their place in the LLM's vocabulary."""
SPK2INFO_FILE = "spk2info.pt"
DEFAULT_ENTRY = "001"
"""Voice in spk2info.pt for requests to CosyVoice2's `token2wav` without a voice."""
HELD_BACK_FRAMES = 8
"""Mel frames of CosyVoice3 whose audio is held back until the last call."""
MAX_STATES = 256
"""Most streams whose vocoder state is kept; beyond them, the one that was silent longest is forgotten."""
SEED = 0
"""Seed of the vocoder's noise: requests of one stream must agree on it."""


class WholePass:
    """Runs a block-masked flow over prompt and tokens in one pass."""

    def __init__(self, flow: AnyFlow, config: Token2WavConfig, default_voice: OriginalVoice | None = None) -> None:
        """Take the flow, and the voice of requests that bring none; without it they are refused."""
        self.flow, self._policy = flow, config.synthesis
        self._default_voice = default_voice
        self._noise = frozen_normal(flow.output_size, flow.noise_frames).to(flow.device)

    @torch.inference_mode()
    def run(self, inputs: RequestInputs, offset: int) -> tuple[Tensor, bool]:
        """Return the mel [80, F] from `token_offset` on, and whether the request is its stream's last.

        Args:
            inputs: the request's tensors.
            offset: what its tokens are ahead of 0.

        Raises:
            InvalidRequestError: a tensor is missing or wrong.
        """
        tokens = _tokens(inputs, "target_speech_tokens", offset)
        prompt, mel, speaker = self._voice(inputs, offset)
        stride = self.flow.stride
        count = min(len(prompt), len(mel) // stride)
        is_stream = inputs.has("token_offset")
        is_last = inputs.boolean("finalize") if inputs.has("finalize") else not is_stream
        first = inputs.integer("token_offset", np.int32) if is_stream else 0
        spoken = len(tokens) - (0 if is_last else LOOKAHEAD_TOKENS)
        if not 0 <= first < spoken:
            raise InvalidRequestError(
                f"token_offset is {first}, but the request speaks {max(spoken, 0)} tokens; a request that is not the "
                f"last needs {LOOKAHEAD_TOKENS} tokens of look-ahead beyond those"
            )
        ids = torch.cat([prompt[:count], tokens])
        frames = stride * (count + spoken)
        if frames > self._noise.shape[1]:
            raise InvalidRequestError(f"got {frames / 50:.0f} s of prompt and audio, expected at most 300 s")
        made = self._mel(ids, mel[: stride * count], speaker, frames, is_stream, is_last)
        return made[:, stride * (count + first) :], is_last

    def _voice(self, inputs: RequestInputs, offset: int) -> tuple[Tensor, Tensor, FloatArray]:
        """Return the prompt's tokens and mel [F, 80], and the speaker's embedding."""
        voice = self._default_voice
        if voice is not None and not inputs.has("prompt_spk_embedding"):
            return (
                torch.from_numpy(voice.prompt_tokens).long(),
                torch.from_numpy(voice.prompt_mel),
                voice.speaker_embedding,
            )
        prompt = _tokens(inputs, "prompt_speech_tokens", offset)
        mel = torch.from_numpy(inputs.halves("prompt_speech_feat")).view(-1, self.flow.output_size)
        return prompt, mel, inputs.halves("prompt_spk_embedding")

    def _mel(
        self, ids: Tensor, prompt: Tensor, speaker: FloatArray, frames: int, is_stream: bool, is_last: bool
    ) -> Tensor:
        device = self.flow.device
        cond = functional.pad(prompt.T, (0, frames - len(prompt)))
        mel, _ = self.flow(
            ids[None].to(device),
            torch.tensor([len(ids)], device=device),
            torch.tensor([is_last], device=device),
            torch.from_numpy(speaker)[None].to(device),
            self._noise[None, :, :frames],
            self.flow.steps(self._policy.ode_steps),
            cond=cond[None].to(device),
            is_masked=is_stream,
        )
        return torch.as_tensor(mel[0, :, :frames]).float()


def load_mel_model(pb_utils: PbUtils, model_config_json: str) -> OneByOneModel:
    """Make CosyVoice3's `token2wav`: tokens and a voice to mel FP32 [1, 80, F]; keeps nothing."""
    config, models = _load(model_config_json)
    whole = WholePass(_flow_of(models, config), config)
    return OneByOneModel(pb_utils, lambda inputs, _: {"mel": _batch_of_one(whole.run(inputs, 0)[0])})


def load_vocoder_model(pb_utils: PbUtils, model_config_json: str) -> OneByOneModel:
    """Make CosyVoice3's `vocoder`: all mel of a stream so far to all its audio FP32 [1, N]; keeps nothing."""
    config, models = _load(model_config_json)
    assert isinstance(models.vocoder, CausalHiFT)
    vocoder = CausalStreamVocoder(_folded(models.vocoder, config), config.synthesis)
    return OneByOneModel(pb_utils, lambda inputs, _: vocode(vocoder, inputs))


def load_wave_model(pb_utils: PbUtils, model_config_json: str) -> OneByOneModel:
    """Make CosyVoice2's `token2wav`; see `WaveStreams`."""
    config, models = _load(model_config_json)
    assert isinstance(models.vocoder, HiFT)
    vocoder = StreamVocoder(_folded(models.vocoder, config), config.synthesis)
    whole = WholePass(_flow_of(models, config), config, find_default_voice(Path(config.model_dir)))
    return OneByOneModel(pb_utils, WaveStreams(whole, vocoder).speak)


@torch.inference_mode()
def vocode(vocoder: CausalStreamVocoder, inputs: RequestInputs) -> dict[str, FloatArray]:
    """Map `mel` FP32 [1, 80, F] and `finalize` to `tts_speech` FP32 [1, N].

    Raises:
        InvalidRequestError: a tensor is missing or wrong, or there are too few frames.
    """
    hift = vocoder.hift
    mel = torch.from_numpy(inputs.floats("mel").copy()).view(hift.config.in_channels, -1).to(hift.window.device)
    is_last = inputs.boolean("finalize")
    frames = mel.shape[1] - (0 if is_last else HELD_BACK_FRAMES)
    if frames < 1:
        raise InvalidRequestError(
            f"got {mel.shape[1]} mel frames, expected at least 1 in a last request, {HELD_BACK_FRAMES + 1} before"
        )
    (wave,), _ = vocoder.vocode([VocoderInput(vocoder.initial_state(), mel, SEED, is_last)])
    return {"tts_speech": _batch_of_one(wave[: frames * hift.config.frame_samples])}


class WaveStreams:
    """CosyVoice2's `token2wav`: tokens and a voice to audio FP32 [1, N]; a stream's state goes by request id."""

    def __init__(self, whole: WholePass, vocoder: StreamVocoder) -> None:
        self._whole, self._vocoder = whole, vocoder
        self._states: OrderedDict[str, VocoderState] = OrderedDict()

    @torch.inference_mode()
    def speak(self, inputs: RequestInputs, request_id: str) -> dict[str, FloatArray]:
        """Return the audio of one request.

        Raises:
            InvalidRequestError: a tensor is missing or wrong, or its stream's beginning is not known.
        """
        if inputs.has("token_offset") and not request_id:
            raise InvalidRequestError("a request with token_offset needs a request id: its stream's state goes by it")
        mel, is_last = self._whole.run(inputs, TOKEN_OFFSET)
        begins = not inputs.has("token_offset") or inputs.integer("token_offset", np.int32) == 0
        kept = None if begins else self._states.pop(request_id, None)
        if kept is None and not begins:
            raise InvalidRequestError(f"nothing is kept of stream {request_id!r}: send it from its first tokens on")
        row = VocoderInput(kept or self._vocoder.initial_state(), mel, SEED, is_last)
        (wave,), (state,) = self._vocoder.vocode([row])
        if not is_last:
            self._states[request_id] = state
            while len(self._states) > MAX_STATES:
                self._states.popitem(last=False)
        return {"waveform": _batch_of_one(wave)}


def _batch_of_one(made: Tensor) -> FloatArray:
    return made.float().cpu().numpy()[None]


def _tokens(inputs: RequestInputs, name: str, offset: int) -> Tensor:
    ids = torch.from_numpy(inputs.integers(name).astype(np.int64)) - offset
    if not len(ids) or int(ids.min()) < 0 or int(ids.max()) >= SPEECH_VOCAB_SIZE:
        raise InvalidRequestError(
            f"{name} has {len(ids)} tokens, expected at least one, all in {offset}..{offset + SPEECH_VOCAB_SIZE - 1}"
        )
    return ids


def find_default_voice(model_dir: Path) -> OriginalVoice | None:
    """Return the voice of the checkpoint's spk2info.pt that the original speaks in by default; None without the file.

    Raises:
        CheckpointError: the file can't be read, or has no such voice that can be used.
    """
    path = model_dir / SPK2INFO_FILE
    if not path.is_file():
        return None
    voices = {voice.name: voice for voice in read_spk2info(path)}
    voice = voices.get(DEFAULT_ENTRY)
    if not isinstance(voice, OriginalVoice):
        got = f"its entry can't be used: {voice.reason}" if voice is not None else f"its entries are {sorted(voices)}"
        raise CheckpointError(f"{path}: expected a voice {DEFAULT_ENTRY!r}; {got}")
    return voice


def _load(model_config_json: str) -> tuple[Token2WavConfig, LoadedModels]:
    config = Token2WavConfig.from_mapping(read_parameters(model_config_json))
    return config, load_models(Path(config.model_dir))


def _flow_of(models: LoadedModels, config: Token2WavConfig) -> AnyFlow:
    if not models.flow.block_tokens:
        raise CheckpointError(f"{config.model_dir} is of family {models.config.family.value}, which has no such model")
    return models.flow.to(config.device, DTYPES[config.dtype])


def _folded(vocoder: Any, config: Token2WavConfig) -> Any:
    return fold_weight_norm(vocoder).to(config.device)
