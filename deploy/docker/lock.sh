#!/usr/bin/env bash
# Writes the lock files of the images, deploy/docker/locks/*.txt: every package with version and hashes. Run it after a
# change of pyproject.toml or of deploy/constraints-*.txt, from the root; it needs uv (pip install uv).
set -euo pipefail

readonly LOCKS=deploy/docker/locks
readonly PYTHON=3.11  # Debian 12's
readonly PLATFORM=x86_64-manylinux_2_35  # what nvidia-pytriton needs; Debian 12 has 2.36
# What an image with another build of torch must not have.
readonly CUDA='^(torch|triton|nvidia-c[^=]*|nvidia-n[^=]*|cuda-[^=]*)=='

# Prints a lock. Args: constraints, extras...
lock() {
  local -a options=()
  local extra
  for extra in "${@:2}"; do options+=(--extra "$extra"); done
  uv pip compile pyproject.toml -c "$1" --python-version "$PYTHON" --python-platform "$PLATFORM" \
    --generate-hashes --no-header --no-annotate --quiet "${options[@]}"
}

# Of a lock, prints the packages whose line has the pattern (yes) or has it not (no).
packages() {
  awk -v wanted="$1" -v pattern="$CUDA" '/^[^ ]/ { keep = ($0 ~ pattern) == (wanted == "yes") } keep'
}

mkdir -p "$LOCKS"
uv pip compile deploy/docker/build.in --universal --generate-hashes --no-header --no-annotate --quiet \
  --output-file "$LOCKS/build.txt"
lock deploy/constraints-cpu.txt text audio tracing >"$LOCKS/gateway.txt"
lock deploy/constraints-cpu.txt text audio tracing token2wav cpu llm-embedded triton-embedded checkpoint |
  packages no >"$LOCKS/cpu.txt"
engines=$(lock deploy/constraints-gpu.txt token2wav gpu llm-embedded triton-embedded tracing)
packages no <<<"$engines" >"$LOCKS/engines.txt"
packages yes <<<"$engines" >"$LOCKS/cuda.txt"
