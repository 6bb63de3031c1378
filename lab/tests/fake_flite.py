"""A stand-in for the source engine: a program that takes flite's options, buzzes for each letter of the text, and
prints the phones it "spoke".
"""

from __future__ import annotations

import sys
from pathlib import Path

_PROGRAM = """#!{python}
import argparse, array, math, wave
parser = argparse.ArgumentParser()
for name in ("-voice", "--setf", "-t", "-o"):
    parser.add_argument(name)
parser.add_argument("-psdur", action="store_true")
args = parser.parse_args()
stretch = float(args.setf.split("=")[1])
pitch = {{"rms": 100, "slt": 170, "awb": 120, "kal16": 90}}[args.voice]
phones = ["aa", "iy", "uw", "s", "m", "eh"]
letters = [c for c in args.t.lower() if c.isalpha()] * 3
period = 16000 // pitch
waves = [
    [int(3000 * sum(math.sin(2 * math.pi * k * n / period) / (1 + abs(k - 2 - vowel)) for k in range(1, 9)))
     for n in range(period)]
    for vowel in range(6)
]
samples, ends = array.array("h", [0] * 800), [("pau", 0.05)]
for letter in letters[:60]:
    number = (ord(letter) - 97) % 6
    samples.extend(waves[number] * round(640 * stretch / period))
    ends.append((phones[number], len(samples) / 16000))
print(" ".join(f"{{phone}}:{{end:.4f}}" for phone, end in ends))
with wave.open(args.o, "wb") as file:
    file.setnchannels(1)
    file.setsampwidth(2)
    file.setframerate(16000)
    file.writeframes(samples.tobytes())
"""


def install_fake_flite(root: Path) -> Path:
    """Write the program where the unpacked engines would have it; returns `root`."""
    program = root / "usr/bin/flite"
    program.parent.mkdir(parents=True)
    program.write_text(_PROGRAM.format(python=sys.executable), encoding="utf-8")
    program.chmod(0o755)
    return root
