"""How much faster this tree speaks on a CPU than an earlier commit: `python -m benchmarks.cpu_speed`.

Checks the earlier commit out beside this one, starts both with their own `cosydit serve` (default settings, the bundled
voice, other ports and working directories), and loads them in turn: one caller, with sentences of about 80 and of about
190 letters, then twelve who ask for the next sentence as soon as they have heard one. While one is measured, the other
has nothing to do. Both speak the same texts with the same seeds. Then each speaks the held-out sentences to one caller,
and a recogniser listens. Linux only.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median

import numpy as np
from tqdm import tqdm

from benchmarks.lib.commits import BASE_COMMIT, ROOT, checked_out, own_code
from benchmarks.lib.word_errors import WordErrors, heldout_sentences, word_errors
from cosydit.bench.report import describe_environment, write_json
from cosydit.bench.types import count
from cosydit.certify.recognition import RATE_HZ, SphinxRecogniser
from cosydit.stack.process import ServiceProcess, ServiceSpec, ServiceStartError, stopped_by_signals
from gateway.audio.codecs import PCM16_BYTES
from gateway.client import ClientError, speak_over_http
from servicekit.clock import SystemClock
from token2wav_service.contract import SAMPLE_RATE_HZ
from token2wav_service.features.audio import resample
from token2wav_service.serving.process.server import free_ports

BEFORE, TODAY = "before", "today"
DEFAULT_OUT = ROOT / "benchmarks" / "results" / "cpu_speed.json"
READY_TIMEOUT_S = 300.0
TIMEOUT_S = 300.0
_STOP_TIMEOUT_S = 120.0
_SHORT_SENTENCES_EACH = 2
_REFUSED = "answered 429"
_ASK_AGAIN_S = 1.0
_MOST_REFUSALS = 120
_PCM16_SCALE = 32768.0
_DRAWS = 10_000
_BYTES_A_SECOND = PCM16_BYTES * SAMPLE_RATE_HZ
SENTENCES = (
    "The weather was fine, and the old man walked slowly down to the river to look at the boats.",
    "She opened the letter, read it twice, and put it back into the drawer without a word.",
    "A small dog ran across the street, and every car stopped to let it pass.",
    "In the morning the train was late, but nobody on the platform seemed to mind.",
)
"""Sentences for one caller: 4 to 6 s each."""
LONG_SENTENCES = (
    "When the last of the guests had gone, and the lamps were out, she sat for a long time at the window, listening to "
    "the rain on the leaves, and thought of all that had been said that evening.",
    "He had always meant to go back to the village where he was born, but there was so much to do in the town, and the "
    "road was so long, that one year went by, and then another, and he never did.",
)
"""About 190 letters each, for one caller."""
SHORT_SENTENCES = (
    *(
        "The boat came home to the harbour at dawn.",
        "He gave the little child a red ball.",
        "We took the train to the coast.",
    ),
    *(
        "The rain fell on the old roof all night.",
        "She read the letter to him twice.",
        "They walked along the quiet river.",
    ),
    *(
        "My sister sings in the garden every day.",
        "The doctor closed the heavy door.",
        "A cold wind blew from the north.",
    ),
    *("Two men carried the long table.", "The teacher wrote a short note.", "Our neighbour sold the old car."),
)
"""Sentences for many callers: about 2.5 s each."""


@dataclass
class Speech:
    """One answer."""

    text: str
    ttfa_s: float
    total_s: float
    audio_s: float
    stalled_s: float
    """Seconds that a playback which began with the first sample had to wait."""
    pcm: bytes = field(repr=False)
    refused: int = 0
    """Number of times that the caller was refused before."""


@dataclass
class Samples:
    """What was measured of one tree, in the order of the rounds."""

    rtf: list[float] = field(default_factory=list)
    ttfa_s: list[float] = field(default_factory=list)
    long_ttfa_s: list[float] = field(default_factory=list)
    cpu_s_per_audio_s: list[float] = field(default_factory=list)
    """CPU seconds of all processes, one caller; a busy neighbour changes them less than the clock's."""
    many_audio_s_per_s: list[float] = field(default_factory=list)
    many_cpu_s_per_audio_s: list[float] = field(default_factory=list)
    many_ttfa_s: list[float] = field(default_factory=list)
    many_stalled_share: list[float] = field(default_factory=list)
    """Share of each round's answers whose playback had to wait."""
    many_refused: list[int] = field(default_factory=list)
    """Requests of each round that were refused with 429; their callers asked again a second later."""
    word_errors: list[int] = field(default_factory=list)
    """In each of the held-out sentences."""
    words: list[int] = field(default_factory=list)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; exit status 2 if it could not be measured."""
    args = _parser().parse_args(argv)
    try:
        with stopped_by_signals(lambda: None), tempfile.TemporaryDirectory(prefix="cpu-speed-") as made:
            measured = _measure(args, Path(made))
    except (ClientError, OSError, ServiceStartError, subprocess.CalledProcessError) as error:
        print(f"cpu_speed: {error}", file=sys.stderr)
        return 2
    found = figures(measured)
    write_json(
        args.out,
        {
            "figures": found,
            "commit_before": args.commit,
            "python_of_both": "one environment; each tree's own code by PYTHONPATH",
            "samples": {name: _rounded(asdict(each)) for name, each in measured.items()},
            "environment": describe_environment(vars(args)),
        },
    )
    print("\n".join(f"{name:32} {value:.3f}" for name, value in found.items()))
    return 0


def figures(measured: dict[str, Samples]) -> dict[str, float]:
    """Return the ratios of today over before, each of medians, and what they are made of.

    `wer_low` and `wer_high` bound today's word error rate less the one before, in 95 of 100 draws of the sentences.
    """
    before, today = measured[BEFORE], measured[TODAY]

    def ratio(name: str) -> float:
        return float(median(getattr(today, name)) / median(getattr(before, name)))

    found = {
        "rtf_ratio": ratio("rtf"),
        "ttfa_ratio": ratio("ttfa_s"),
        "ttfa_long_ratio": ratio("long_ttfa_s"),
        "xrt_12_callers_ratio": ratio("many_audio_s_per_s"),
        "cpu_ratio": ratio("cpu_s_per_audio_s"),
        "cpu_12_callers_ratio": ratio("many_cpu_s_per_audio_s"),
        "ttfa_12_callers_ratio": ratio("many_ttfa_s"),
    }
    for name, each in measured.items():
        found |= {
            f"rtf_{name}": median(each.rtf),
            f"ttfa_ms_{name}": 1e3 * median(each.ttfa_s),
            f"xrt_12_callers_{name}": median(each.many_audio_s_per_s),
            f"stalled_12_callers_{name}": sum(each.many_stalled_share) / len(each.many_stalled_share),
            f"refused_12_callers_{name}": sum(each.many_refused),
            f"wer_{name}": sum(each.word_errors) / sum(each.words),
        }
    found["wer_low"], found["wer_high"] = _word_error_bounds(before, today)
    return {name: round(float(value), 4) for name, value in found.items()}


def _word_error_bounds(before: Samples, today: Samples) -> tuple[float, float]:
    """Draw the sentences again and again, with both trees' errors in each."""
    more = np.subtract(today.word_errors, before.word_errors)
    drawn = np.random.default_rng(0).integers(len(more), size=(_DRAWS, len(more)))
    differences = more[drawn].sum(axis=1) / np.asarray(today.words)[drawn].sum(axis=1)
    low, high = np.percentile(differences, (2.5, 97.5))
    return float(low), float(high)


def _measure(args: argparse.Namespace, made: Path) -> dict[str, Samples]:
    measured = {BEFORE: Samples(), TODAY: Samples()}
    with checked_out(args.commit, made / "tree") as tree, contextlib.ExitStack() as stack:
        urls, pids = {}, {}
        for name, root in ((BEFORE, tree), (TODAY, ROOT)):
            print(f"starting {name}: {root}", flush=True)
            service, urls[name] = _stack(name, root, made)
            stack.enter_context(service).wait_ready(READY_TIMEOUT_S)
            pids[name] = service.pid
            _one_caller(urls[name], SENTENCES, seed=0)
        for number in range(args.rounds):
            for name in (BEFORE, TODAY) if number % 2 == 0 else (TODAY, BEFORE):
                each = measured[name]
                _round(each, urls[name], pids[name], args.callers, number)
                print(
                    f"round {number + 1} of {args.rounds}, {name}: rtf {each.rtf[-1]:.2f}, first audio "
                    f"{1e3 * each.ttfa_s[-1]:.0f} ms, {args.callers} callers {each.many_audio_s_per_s[-1]:.2f} s/s",
                    flush=True,
                )
        for name, each in measured.items():
            heard = _listen(urls[name], heldout_sentences()[: args.sentences], name)
            each.word_errors, each.words = [one.errors for one in heard], [one.words for one in heard]
    return measured


def _round(samples: Samples, url: str, pid: int, callers: int, number: int) -> None:
    """Measure both loads once, and one caller's long sentences."""
    samples.long_ttfa_s += [each.ttfa_s for each in _one_caller(url, LONG_SENTENCES, 1 + number)]
    began_s = cpu_seconds(pid)
    alone = _one_caller(url, SENTENCES, 1 + number)
    between_s = cpu_seconds(pid)
    clock_s = time.perf_counter()
    many = _many_callers(url, callers, 1 + number)
    took_s = time.perf_counter() - clock_s
    ended_s = cpu_seconds(pid)
    samples.rtf += [each.total_s / each.audio_s for each in alone]
    samples.ttfa_s += [each.ttfa_s for each in alone]
    samples.cpu_s_per_audio_s.append((between_s - began_s) / _audio_s(alone))
    samples.many_audio_s_per_s.append(_audio_s(many) / took_s)
    samples.many_cpu_s_per_audio_s.append((ended_s - between_s) / _audio_s(many))
    samples.many_ttfa_s += [each.ttfa_s for each in many]
    samples.many_refused.append(sum(each.refused for each in many))
    samples.many_stalled_share.append(sum(each.stalled_s > 0 for each in many) / len(many))


def _one_caller(url: str, texts: Sequence[str], seed: int) -> list[Speech]:
    return [_speak(url, text, seed) for text in texts]


def _many_callers(url: str, callers: int, seed: int) -> list[Speech]:
    def listen(caller: int) -> list[Speech]:
        texts = [SHORT_SENTENCES[(caller + turn) % len(SHORT_SENTENCES)] for turn in range(_SHORT_SENTENCES_EACH)]
        return [_speak_when_admitted(url, text, seed * callers + caller) for text in texts]

    with ThreadPoolExecutor(callers) as pool:
        return [speech for heard in pool.map(listen, range(callers)) for speech in heard]


def _speak_when_admitted(url: str, text: str, seed: int) -> Speech:
    for refused in range(_MOST_REFUSALS):
        try:
            return replace(_speak(url, text, seed), refused=refused)
        except ClientError as error:
            if _REFUSED not in str(error):
                raise
            time.sleep(_ASK_AGAIN_S)
    raise ClientError(f"{url} refused {text!r} {_MOST_REFUSALS} times")


def _speak(url: str, text: str, seed: int) -> Speech:
    arrivals: list[tuple[float, bytes]] = []
    timing = speak_over_http(
        url,
        text,
        "default",
        lambda piece: arrivals.append((time.perf_counter(), piece)),
        SystemClock(),
        TIMEOUT_S,
        seed,
    )
    pcm = b"".join(piece for _, piece in arrivals)
    return Speech(text, timing.ttfa_s, timing.total_s, timing.audio_s, stalled_s(arrivals), pcm)


def stalled_s(arrivals: Sequence[tuple[float, bytes]]) -> float:
    """Return how long a playback that begins with the first piece waits for later ones, in seconds."""
    ends_s, waited_s = arrivals[0][0], 0.0
    for at_s, piece in arrivals:
        waited_s += max(0.0, at_s - ends_s)
        ends_s = max(ends_s, at_s) + len(piece) / _BYTES_A_SECOND
    return waited_s


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process and all below it that live, in seconds."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
        children = [
            int(child)
            for task in Path(f"/proc/{pid}/task").iterdir()
            for child in (task / "children").read_text("ascii").split()
        ]
    except FileNotFoundError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") + sum(map(cpu_seconds, children))


def _stack(name: str, root: Path, made: Path) -> tuple[ServiceProcess, str]:
    """Return what serves a tree's code, not started, and its URL."""
    llm, tokens, http, grpc, metrics, gateway = free_ports(6)
    # `python -m` looks into the working directory first: it must be the tree's own.
    command = ["env", f"--chdir={root}", sys.executable, "-m", "cosydit.cli.main", "serve", "--gateway-grpc-port", "0"]
    command += ["--llm-port", str(llm), "--llm-grpc-port", str(tokens), "--gateway-port", str(gateway)]
    command += ["--triton-http-port", str(http), "--triton-grpc-port", str(grpc), "--triton-metrics-port", str(metrics)]
    env = own_code(root) | {"COSYDIT_HOME": str(made / name)}
    url = f"http://127.0.0.1:{gateway}"
    spec = ServiceSpec(name, command, f"{url}/readyz", made / f"{name}.log", env, _STOP_TIMEOUT_S)
    return ServiceProcess(spec), url


def _listen(url: str, sentences: Sequence[str], name: str) -> list[WordErrors]:
    """Speak the sentences one after the other, and count the words that are heard wrong."""
    recogniser, heard = SphinxRecogniser(), list[WordErrors]()
    for seed, text in enumerate(tqdm(sentences, desc=f"listening to {name}", unit="sentence")):
        samples = np.frombuffer(_speak(url, text, seed).pcm, "<i2").astype(np.float32) / _PCM16_SCALE
        heard.append(word_errors(text, recogniser.transcribe(resample(samples, SAMPLE_RATE_HZ, RATE_HZ))))
    return heard


def _audio_s(spoken: Sequence[Speech]) -> float:
    return sum(each.audio_s for each in spoken)


def _rounded(samples: dict[str, list[float]]) -> dict[str, list[float]]:
    return {name: [round(value, 3) for value in values] for name, values in samples.items()}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cpu_speed", description=__doc__, allow_abbrev=False)
    parser.add_argument("--commit", default=BASE_COMMIT, help="commit to compare with (default %(default)s)")
    parser.add_argument(
        "--rounds", type=count, default=5, help="number of rounds of both loads, on both trees (default %(default)s)"
    )
    parser.add_argument("--callers", type=count, default=12, help="number of callers at once (default %(default)s)")
    parser.add_argument(
        "--sentences", type=count, default=100, help="number of held-out sentences to listen to (default %(default)s)"
    )
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="JSON to write (default %(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
