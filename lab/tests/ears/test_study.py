"""The listening study: figures follow from the rows, and the benchmark fills rows from running gateways."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.lib.word_errors import WordErrors
from demo_voice.unpack import VOICES
from lab.ears.audio_faults import AudioFaults
from lab.ears.bandwidth import Bandwidth
from lab.ears.moonshine import END_ID
from lab.ears.opinion import Opinion
from lab.ears.speakers import SpeakerRanking
from lab.ears.study import Heard, Kind, StudyRow, figures, row_from_json, row_json
from lab.tests.ears.conftest import Voice
from lab.tests.ears.test_moonshine import write_models
from lab.voice import quality
from tests.bundled_voices import NAMES
from token2wav_service.checkpoint.make_random import make_speaker_encoder
from token2wav_service.features.audio import resample_16k_to_24k

ROW = StudyRow(
    text="one two three four",
    voice="default",
    seed=0,
    ttfa_s=0.3,
    total_s=1.0,
    audio_s=4.0,
    streamed=Heard("one too three four", WordErrors(1, 4)),
    offline=Heard("one two three four", WordErrors(0, 4)),
    source=Heard("one two three four", WordErrors(0, 4)),
    ranking=SpeakerRanking("default", {"default": 0.9, "slt": 0.1}),
    faults=AudioFaults(0.1, 0.2, 0, 0),
    pitch_distance=0.1,
    loudness_distance=None,
)


def test_figures_are_computed_from_the_rows() -> None:
    late = replace(ROW, ttfa_s=0.5, total_s=3.0, offline=Heard("", WordErrors(4, 4)))
    other = replace(ROW, voice="slt", offline=None, source=None, ranking=SpeakerRanking("slt", ROW.ranking.similarity))

    found = figures([ROW, late, other], "default")

    assert found == {
        "wer": 0.25,
        "source_wer": 0.0,
        "wer_over_source": float("inf"),
        "rtf": 0.5,
        "ttfa_ms": 400.0,
        "speaker_top1": pytest.approx(2 / 3),
        "seam_wer_ratio": 0.5,
    }


def test_renderings_without_error_are_alike_and_one_with_errors_is_infinitely_worse() -> None:
    good = replace(ROW, streamed=ROW.source or ROW.streamed)

    assert figures([good], "default")["seam_wer_ratio"] == 1.0
    assert figures([ROW], "default")["seam_wer_ratio"] == float("inf")


def test_rows_without_what_a_figure_needs_are_refused() -> None:
    with pytest.raises(ValueError, match="0 with offline"):
        figures([replace(ROW, offline=None)], "default")
    with pytest.raises(ValueError, match="0 rows of voice 'awb'"):
        figures([ROW], "awb")


@pytest.mark.parametrize("opinion", [None, Opinion(4.0, 3.5, 4.1, 3.2)])
def test_a_row_survives_json(opinion: Opinion | None) -> None:
    band = Bandwidth(7000.0, 8000.0, 9) if opinion else None
    row = replace(ROW, opinion=opinion, source_opinion=opinion, bandwidth=band)

    assert row_from_json(json.loads(json.dumps(row_json(row)))) == row


def test_opinions_are_figures_only_where_every_row_of_the_voice_has_one() -> None:
    best = Opinion(4.5, 3.5, 4.0, 4.25)
    rows = [replace(ROW, opinion=Opinion(p808, 3.0, 4.0, p808 - 1), source_opinion=best) for p808 in (4.0, 3.0)]
    other = replace(ROW, voice="slt")

    found = figures([*rows, other], "default")

    assert (found["dnsmos_p808"], found["dnsmos_ovrl"]) == (3.5, 2.5)
    assert (found["source_dnsmos_p808"], found["source_dnsmos_ovrl"]) == (4.5, 4.25)
    assert not {"dnsmos_p808", "source_dnsmos_p808"} & figures([*rows, ROW], "default").keys()
    unheard = figures([rows[0], replace(rows[1], source_opinion=None)], "default")
    assert unheard["dnsmos_p808"] == 3.5 and "source_dnsmos_p808" not in unheard


def test_a_second_recogniser_s_errors_are_figures_only_where_it_heard_every_row_and_its_source() -> None:
    wrong, right = Heard("to", WordErrors(1, 4)), Heard("one two three four", WordErrors(0, 4))
    row = replace(ROW, streamed_neural=wrong, source_neural=right)
    fragment = replace(row, kind=Kind.FRAGMENT, streamed_neural=right, source_neural=wrong)
    found = figures([row, fragment], "default")
    assert (found["neural_wer"], found["neural_source_wer"]) == (0.25, 0.0)
    assert (found["neural_fragment_wer"], found["neural_fragment_source_wer"]) == (0.0, 0.25)
    assert "neural_wer" not in figures([row, ROW], "default")
    assert row_from_json(json.loads(json.dumps(row_json(row)))) == row


def test_fragments_have_figures_of_their_own() -> None:
    wrong = Heard("to", WordErrors(1, 2))
    fragments = [replace(ROW, kind=Kind.FRAGMENT, offline=None, source=wrong, streamed=wrong)] * 2
    unsure = replace(fragments[0], ranking=SpeakerRanking("default", {"default": 0.1, "slt": 0.9}))

    found = figures([ROW, *fragments, unsure], "default")

    assert (found["wer"], found["speaker_top1"]) == (0.25, 1.0)
    assert (found["fragment_wer"], found["fragment_source_wer"], found["fragment_wer_over_source"]) == (0.5, 0.5, 1.0)
    assert "fragment_wer" not in figures([ROW, replace(fragments[0], source=None)], "default")


def test_long_texts_count_their_word_errors_and_what_was_said_beyond_them() -> None:
    twice, plain = Heard("one two one two three four", WordErrors(2, 4)), Heard("one two three four", WordErrors(0, 4))
    long = replace(ROW, text="One two, three four.", kind=Kind.LONG, offline=None, streamed_neural=twice)
    rows = [replace(long, source_neural=plain, source=plain), replace(long, source_neural=twice, source=plain)]
    rows += [replace(row, kind=Kind.PARAGRAPH, source=None) for row in rows]

    found = figures([ROW, *rows], "default")

    assert (found["long_wer"], found["long_source_wer"], found["long_wer_over_source"]) == (0.5, 0.25, 2.0)
    assert (found["inserted_share"], found["source_inserted_share"]) == (1.0, 0.5)
    assert (found["paragraph_insertions"], found["paragraph_repeats"]) == (2, 2)
    assert not {"long_wer", "paragraph_repeats"} & set(figures([ROW, replace(ROW, kind=Kind.LONG)], "default"))


def test_every_hissing_frame_weighs_alike_in_the_bandwidth() -> None:
    rows = [replace(ROW, bandwidth=Bandwidth(hz, 8000.0, frames)) for hz, frames in ((8000.0, 30), (4000.0, 10))]

    assert figures([*rows, ROW], "default")["bandwidth_over_source"] == pytest.approx(0.875)
    assert "bandwidth_over_source" not in figures([ROW], "default")


def test_the_ratios_of_speed_come_from_the_other_benchmark(tmp_path: Path) -> None:
    path = tmp_path / "speed.json"
    told = {"commit_before": "a", "environment": {"git_commit": "b", "date_utc": "c"}}
    ratios = {"rtf_ratio": 0.5, "ttfa_ratio": 1.0, "ttfa_long_ratio": 1.1}
    path.write_text(json.dumps({**told, "figures": {**ratios, "wer_before": 0}}), "utf-8")

    assert quality.speed_ratios(path) == {
        "figures": ratios,
        "taken_from": {"commit_before": "a", "git_commit": "b", "date_utc": "c"},
    }


class _Gateway(BaseHTTPRequestHandler):
    """Answers every request with the prompt of the voice asked for."""

    def do_POST(self) -> None:
        body: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        pcm = self.server.answers[body["voice"]]  # type: ignore[attr-defined]
        self.send_response(200)
        self.send_header("Content-Length", str(len(pcm)))
        self.end_headers()
        self.wfile.write(pcm)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def gateway(voices: list[Voice]) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Gateway)
    audio = {voice.name: np.clip(resample_16k_to_24k(voice.samples), -1, 1) for voice in voices}
    server.answers = {name: (32767 * samples).astype("<i2").tobytes() for name, samples in audio.items()}  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    (tmp_path / "token2wav").mkdir()
    make_speaker_encoder(tmp_path / "token2wav" / "campplus.onnx", seed=0)
    (tmp_path / "voices").symlink_to(VOICES)
    return tmp_path


@pytest.mark.slow
def test_the_benchmark_listens_to_both_gateways_and_the_source_engine(
    gateway: str, checkpoint: Path, tmp_path: Path, engines: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "voice.json"
    options = ["--url", gateway, "--offline-url", gateway, "--checkpoint", str(checkpoint), "--engines", str(engines)]

    options += ["--moonshine", str(write_models(tmp_path, {1: 3, 3: END_ID}, {}))]
    options += ["--sentences", "1", "--speaker-sentences", "1", "--fragments", "1", "--out", str(out)]
    options += ["--long", "1", "--paragraphs", "1"]

    assert quality.main(options) == 0

    result = json.loads(out.read_text("utf-8"))
    rows = [row_from_json(json.loads(line)) for line in out.with_suffix(".jsonl").read_text("utf-8").splitlines()]
    assert result["figures"] == pytest.approx(figures(rows, "default"))
    assert len(rows) == result["rows"] == len(NAMES) + 3
    assert result["teachers"] == "flite" and "fragment_wer" in result["figures"]
    assert {row.streamed_neural and row.streamed_neural.transcript for row in rows} == {"hello"}
    assert result["figures"]["neural_wer"] == 1.0
    assert result["figures"]["seam_wer_ratio"] == 1.0
    assert result["figures"]["speaker_top1"] == 1.0
    assert "seam_wer_ratio" in capsys.readouterr().out


def test_a_gateway_that_is_not_there_ends_the_benchmark_with_a_message(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "voice.json"

    status = quality.main(["--url", "http://127.0.0.1:9", "--checkpoint", str(checkpoint), "--out", str(out)])

    assert status == 2
    assert "is the gateway running there?" in capsys.readouterr().err
    assert not out.exists()
