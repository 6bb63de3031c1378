"""What the text front end costs: CPU time of cutting and reading a sentence, by language.

`python -m benchmarks.text_speed` reads the sentences that the load benchmark speaks, and sentences full of dates,
amounts and the like, each as a request of its own. No network, no services.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from cosydit.bench.inputs import read_samples
from cosydit.bench.metrics import percentile
from cosydit.bench.report import aligned_table, describe_environment, write_json
from gateway.text import WHOLE_TEXT, TextFrontEnd, TextOptions, load_text_front_end

WRITTEN = {
    "en, forms": (
        "Flight BA117 leaves at 6:05 p.m. from gate B42.",
        "She was born on June 3, 1998 in St. Paul, MN 55101.",
        "Prices rose 2.5%-3% in Q2, to $1.2 trillion or $9.99/month.",
        "Bake at 350°F for 25-30 min., i.e. until it weighs 4 1/2 lbs.",
        "Let x=5 and y >= 2; the U.S. Senate voted 51-49 on 3/14.",
    ),
    "zh, forms": (
        "会议在2024年5月2日下午2点半开始。",
        "增长了10-20%，共花NT$250。",
        "验证码是482913，航班MU5102。",
        "房间120㎡，高2.8m，血压是120/80mmHg。",
    ),
}
_MS = 1000.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(description="Measure the CPU time of reading a sentence.")
    parser.add_argument("--rounds", type=int, default=20, help="how often each sentence is read (default %(default)s)")
    parser.add_argument("--out", type=Path, default=None, help="JSON file to write")
    args = parser.parse_args(argv)
    plain = [row.text for row in read_samples()]
    front_end = load_text_front_end()
    figures = {
        kind: sorted(_costs_s(front_end, kind[:2], sentences, args.rounds))
        for kind, sentences in {"en, plain": plain, **WRITTEN}.items()
    }
    rows = [["sentences", "read", "median ms", "95 % ms"]]
    for kind, costs_s in figures.items():
        rows.append([kind, str(len(costs_s)), *(f"{_MS * percentile(costs_s, each):.2f}" for each in (50, 95))])
    print(aligned_table(rows), end="")
    if args.out is not None:
        cpu_s = {
            kind: {"p50": percentile(costs_s, 50), "p95": percentile(costs_s, 95)} for kind, costs_s in figures.items()
        }
        write_json(args.out, {"cpu_s_a_sentence": cpu_s, "environment": describe_environment(vars(args))})
    return 0


def _costs_s(front_end: TextFrontEnd, language: str, sentences: Sequence[str], rounds: int) -> Iterator[float]:
    """Yield the CPU seconds of each reading; the first round, in which libraries load, does not count."""
    for turn in range(rounds + 1):
        for sentence in sentences:
            began_s = time.process_time()
            stream = front_end.open(TextOptions(language=language), WHOLE_TEXT)
            for segment in [*stream.push(sentence), *stream.flush()]:
                stream.prepare(segment)
            if turn:
                yield time.process_time() - began_s


if __name__ == "__main__":
    raise SystemExit(main())
