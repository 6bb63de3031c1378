"""MP3, Ogg Opus, AAC and FLAC, and another speed at the same pitch, by FFmpeg's libraries. Needs the `audio` extra.

The codecs are tuned to let bytes go early.

At 24 kHz the first audio leaves after 24 ms of it in FLAC (its frame), 40 ms in Opus (two Ogg pages of a frame each),
48 ms in MP3 and 86 ms in AAC (two frames each and a little); frames last longer at lower rates.

The speed is the filter atempo's (overlap-add of the best fitting windows). It is fed in blocks of one size, as its
output depends a little on how its input is cut, and its end is cut to the exact length, from which it is off by some
40 ms.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import av
import numpy as np
import numpy.typing as npt
from av import AudioFrame
from av.audio.stream import AudioStream
from av.error import BlockingIOError as NothingReadyError
from av.error import EOFError as FilterEndError
from av.filter import Graph

from gateway.audio.codecs import to_pcm16
from gateway.audio.formats import AudioFormat, OutputFormat
from gateway.core import FloatArray
from token2wav_service.contract import SAMPLE_RATE_HZ

_FLOAT_FORMATS = ("flt", "fltp")
# Without this the muxer holds bytes back until it has 32 KiB.
_FLUSH_AT_ONCE = {"flush_packets": "1"}


@dataclass(frozen=True)
class CodecSettings:
    """How FFmpeg is told to make one format."""

    encoder: str
    container: str
    sample_format: str
    encoder_options: Mapping[str, str]
    container_options: Mapping[str, str] = field(default_factory=dict)
    is_valid_empty: bool = False
    """Whether players accept a file without a single frame."""


CODEC_SETTINGS: Mapping[AudioFormat, CodecSettings] = {
    AudioFormat.MP3: CodecSettings(
        "libmp3lame",
        "mp3",
        "fltp",
        # No frame waits for the room that another leaves; the cheap analysis shows in no spectral distance of speech.
        {"reservoir": "0", "compression_level": "7"},
        # No ID3 tag and no Xing header: both would give a wrong length.
        {"id3v2_version": "0", "write_xing": "0"},
    ),
    AudioFormat.OPUS: CodecSettings(
        "libopus",
        "ogg",
        "flt",
        # Looks 2.5 ms ahead instead of 6.5 ms.
        {"application": "lowdelay", "frame_duration": "20", "vbr": "constrained"},
        # A page for every frame, in microseconds; the muxer's own is a second.
        {"page_duration": "20000"},
    ),
    AudioFormat.AAC: CodecSettings("aac", "adts", "fltp", {"aac_coder": "fast"}),
    AudioFormat.FLAC: CodecSettings(
        "flac",
        "flac",
        "s16",
        # Level 2 has the short frames, the rest is what level 5 does in them. Level 2's own lowest order is 0, for
        # which Levinson's method writes frames that no other decoder takes.
        {"compression_level": "2", "lpc_type": "levinson", "min_prediction_order": "1", "max_prediction_order": "8"},
        {"metadata_header_padding": "0"},
        is_valid_empty=True,
    ),
}


class CompressedCodec:
    """One encoder and its container, writing into memory; see `StatelessCodec` for what each method does."""

    def __init__(self, output: OutputFormat) -> None:
        """Open the encoder; the container's header is the first that `encode` returns.

        Args:
            output: of a format in `CODEC_SETTINGS`.

        Raises:
            ValueError: FFmpeg was built without this encoder.
        """
        self._settings = CODEC_SETTINGS[output.audio_format]
        self._rate_hz = output.codec_rate_hz
        self._sink = _Sink()
        options = {**_FLUSH_AT_ONCE, **self._settings.container_options}
        self._container = av.open(self._sink, "w", format=self._settings.container, container_options=options)
        self._stream: AudioStream | None = self._opened_stream(output)
        self._encoded_samples = 0

    def encode(self, samples: FloatArray) -> bytes:
        """See `StatelessCodec`."""
        if len(samples):
            self._mux(self._frame(samples))
        return self._sink.take()

    def finish(self) -> bytes:
        """See `StatelessCodec`."""
        if not self._encoded_samples and not self._settings.is_valid_empty:
            self._mux(self._frame(np.zeros(1, np.float32)))
        self._mux(None)
        self._container.close()
        return self._sink.take()

    def close(self) -> None:
        """See `StatelessCodec`."""
        self._stream = None
        self._container.close()
        self._sink.take()

    def _opened_stream(self, output: OutputFormat) -> AudioStream:
        settings = self._settings
        stream = self._container.add_stream(
            settings.encoder, rate=self._rate_hz, options=dict(settings.encoder_options)
        )
        assert isinstance(stream, AudioStream)
        context = stream.codec_context
        context.layout, context.format = "mono", settings.sample_format
        context.bit_rate = output.codec_bit_rate_bps
        self._container.start_encoding()
        return stream

    def _mux(self, frame: AudioFrame | None) -> None:
        assert self._stream is not None, "closed"
        self._container.mux(self._stream.encode(frame))

    def _frame(self, samples: FloatArray) -> AudioFrame:
        at, self._encoded_samples = self._encoded_samples, self._encoded_samples + len(samples)
        if self._settings.sample_format in _FLOAT_FORMATS:
            return _frame(np.clip(samples, -1.0, 1.0), self._settings.sample_format, self._rate_hz, at)
        return _frame(np.frombuffer(to_pcm16(samples), np.int16), self._settings.sample_format, self._rate_hz, at)


def _frame(
    amplitudes: npt.NDArray[np.float32] | npt.NDArray[np.int16], sample_format: str, rate_hz: int, at: int
) -> AudioFrame:
    frame = AudioFrame.from_ndarray(amplitudes[np.newaxis], sample_format, "mono")
    frame.sample_rate, frame.pts = rate_hz, at
    return frame


class _Sink:
    """Where the container writes; it can't seek, so that nothing is written twice."""

    def __init__(self) -> None:
        self._written = bytearray()

    def write(self, data: bytes) -> int:
        self._written += data
        return len(data)

    def take(self) -> bytes:
        """Return what was written since the last call."""
        taken = bytes(self._written)
        self._written.clear()
        return taken


_BLOCK_SAMPLES = SAMPLE_RATE_HZ // 50
# More silence than any chain of filters holds back, plus the rest of the last block.
_END_SILENCE_SAMPLES = SAMPLE_RATE_HZ // 2
# Bounds of one filter: beyond them it would skip samples or refuse.
_MAX_FACTOR = 2.0
_MIN_FACTOR = 0.5


class TempoChanger:
    """Plays audio at another speed; output is the same however the input is cut."""

    def __init__(self, speed: float) -> None:
        """Build the filters.

        Args:
            speed: 0.25 to 4; above 1 is faster.
        """
        self._speed = speed
        self._graph = _tempo_graph(speed)
        self._kept = np.zeros(0, np.float32)
        """What does not fill a block yet."""
        self._taken_samples = 0
        self._fed_samples = 0
        self._given_samples = 0

    def push(self, samples: FloatArray) -> FloatArray:
        """Take [N] samples at 24 kHz and return those that are ready."""
        self._taken_samples += len(samples)
        return self._given([self._filtered(block) for block in self._full_blocks(samples)])

    def finish(self) -> FloatArray:
        """Return the rest, so that the whole is round(input / speed) samples long."""
        silence = np.zeros(_END_SILENCE_SAMPLES, np.float32)
        tail = np.concatenate([*map(self._filtered, self._full_blocks(silence)), self._filtered(None)])
        missing_samples = round(self._taken_samples / self._speed) - self._given_samples
        return self._given([tail[:missing_samples]])

    def _full_blocks(self, samples: FloatArray) -> list[FloatArray]:
        joined = np.concatenate([self._kept, samples])
        full_samples = len(joined) // _BLOCK_SAMPLES * _BLOCK_SAMPLES
        self._kept = joined[full_samples:]
        return list(joined[:full_samples].reshape(-1, _BLOCK_SAMPLES))

    def _given(self, parts: list[FloatArray]) -> FloatArray:
        samples: FloatArray = np.concatenate([np.zeros(0, np.float32), *parts])
        self._given_samples += len(samples)
        return samples

    def _filtered(self, block: FloatArray | None) -> FloatArray:
        """Put one block through the filters; None ends their input."""
        self._graph.push(None if block is None else _frame(block, "flt", SAMPLE_RATE_HZ, self._fed_samples))
        self._fed_samples += 0 if block is None else len(block)
        ready: list[FloatArray] = [np.zeros(0, np.float32)]
        while (frame := self._pulled()) is not None:
            ready.append(frame.to_ndarray()[0])
        return np.concatenate(ready)

    def _pulled(self) -> AudioFrame | None:
        try:
            frame = self._graph.pull()
        except (NothingReadyError, FilterEndError):
            return None
        assert isinstance(frame, AudioFrame)
        return frame


def _tempo_graph(speed: float) -> Graph:
    graph = Graph()
    source = graph.add(
        "abuffer",
        sample_rate=str(SAMPLE_RATE_HZ),
        sample_fmt="flt",
        channel_layout="mono",
        time_base=f"1/{SAMPLE_RATE_HZ}",
    )
    filters = [graph.add("atempo", repr(factor)) for factor in _factors(speed)]
    graph.link_nodes(source, *filters, graph.add("abuffersink"))
    graph.configure()
    return graph


def _factors(speed: float) -> list[float]:
    factors = []
    while not _MIN_FACTOR <= speed <= _MAX_FACTOR:
        factors.append(_MAX_FACTOR if speed > 1 else _MIN_FACTOR)
        speed /= factors[-1]
    return [*factors, speed]
