"""All tests; the folders mirror the packages. `ROOT` and `ASSETS` say where the repository and its test files are."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ASSETS = ROOT / "tests" / "assets"
