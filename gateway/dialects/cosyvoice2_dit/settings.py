"""Settings of the drop-in entry, read from the model's config.pbtxt, and the pipeline they describe."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ConfigDict, TypeAdapter, ValidationError

from gateway.chunking.policies import ChunkSettings
from gateway.errors import ConfigError
from gateway.llm.client import SpeechLMClient
from gateway.llm.wire import LLMWire
from gateway.speech.prosody_carry import CarryLimits
from gateway.speech.speaker import PipelineSettings, Speaker
from gateway.text import plain_front_end
from gateway.text.styles import StyleRule
from gateway.token2wav.client import Token2WavClient
from gateway.voices.directory import VoiceDirectory
from gateway.voices.registry import VoiceRegistry, load_voices
from gateway.voices.store import CreatedVoices
from gateway.voices.transcripts import TranscriptCheck
from llm_service.aligner import load_aligner
from llm_service.config import LLMBackend
from llm_service.speech_bounds import load_speech_bounds
from llm_service.text_encoder import load_text_encoder
from servicekit.checkpoint_file import CheckpointDeclaration, CheckpointFileError, find_declaration

_CHUNKS = ("dynamic_chunk_strategy", "token_hop_len", "token_hop_len_first", "token_hop_len_max")
"""Parameters of the chunks; of the last one 0 means that there is no bound."""


@dataclass(frozen=True)
class DropInConfig:
    """Everything one process of a drop-in model needs to start; field names are the parameters' names."""

    __pydantic_config__ = ConfigDict(extra="forbid")
    llm_tokenizer_dir: Path
    llm_api_base: str = "http://localhost:8000"
    llm_backend: LLMBackend = LLMBackend.EMBEDDED
    llm_model: str | None = None
    """Name of the LLM's model; None takes the first that the LLM service lists."""
    triton_grpc_address: str = "localhost:8001"
    voices_dir: Path | None = None
    """Folder of voices for requests without reference audio."""
    created_voices_dir: Path | None = None
    """Folder of created voices, as files of features; with neither folder such requests are refused."""
    default_voice: str = "default"
    requests_per_instance: int = 4
    chunks: ChunkSettings = field(default_factory=ChunkSettings)

    @property
    def has_voices(self) -> bool:
        """Whether requests may leave the voice to the server."""
        return self.voices_dir is not None or self.created_voices_dir is not None

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, str]) -> DropInConfig:
        """Read the model's string parameters.

        Raises:
            ConfigError: an unknown name, a missing one, or a value that does not parse.
        """
        chunks: dict[str, str | None] = {name: parameters[name] for name in _CHUNKS if name in parameters}
        if chunks.get("token_hop_len_max") == "0":
            chunks["token_hop_len_max"] = None
        own = {name: value for name, value in parameters.items() if name not in chunks}
        try:
            return TypeAdapter(cls).validate_python({**own, "chunks": chunks})
        except ValidationError as error:
            wrong = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
            expected = "assemble the repository again with `python -m token2wav_service.serving.assemble`"
            raise ConfigError(f"the model's parameters can't be used ({wrong}): {expected}") from error


@asynccontextmanager
async def open_pipeline(config: DropInConfig) -> AsyncIterator[Speaker]:
    """Make the clients and the pipeline inside the running event loop, and close them on leaving.

    Raises:
        ConfigError: a folder of voices can't be used, or none has the default voice.
    """
    bounds = load_speech_bounds(config.llm_tokenizer_dir)
    wire = LLMWire(load_text_encoder(config.llm_tokenizer_dir), config.llm_backend)
    llm = SpeechLMClient(config.llm_api_base, wire, config.llm_model)
    token2wav = Token2WavClient(config.triton_grpc_address)
    try:
        settings = PipelineSettings(chunk_policy=config.chunks.policy(), carry=CarryLimits.within(bounds))
        aligner = load_aligner(config.llm_tokenizer_dir)
        transcripts = TranscriptCheck(aligner, is_on=bounds.follows_text is not False)
        voices = _open_voices(config, token2wav, transcripts)
        styles = StyleRule(_declaration(config).instruct is not None, refuses=True)
        front_end = plain_front_end(bounds.segment_letters, styles)
        yield Speaker(llm, token2wav, voices, settings, front_end=front_end)
    finally:
        await llm.close()
        await token2wav.close()


def _open_voices(config: DropInConfig, token2wav: Token2WavClient, transcripts: TranscriptCheck) -> VoiceRegistry:
    named = load_voices(config.voices_dir) if config.voices_dir is not None else []
    store = None
    if config.created_voices_dir is not None:
        store = CreatedVoices(VoiceDirectory(config.created_voices_dir), token2wav)
    registry = VoiceRegistry(token2wav, named, store=store, transcripts=transcripts)
    if config.has_voices and config.default_voice not in registry.names:
        folders = [str(path) for path in (config.voices_dir, config.created_voices_dir) if path is not None]
        raise ConfigError(f"{' and '.join(folders)} have no voice {config.default_voice!r}: set default_voice")
    return registry


def _declaration(config: DropInConfig) -> CheckpointDeclaration:
    try:
        return find_declaration(config.llm_tokenizer_dir)
    except CheckpointFileError as error:
        raise ConfigError(str(error)) from error
