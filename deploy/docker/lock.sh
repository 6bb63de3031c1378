#!/usr/bin/env bash
# Writes the lock files of the images, deploy/docker/locks/*.txt: every package with version and hashes. Run it after a
# change of pyproject.toml or of deploy/constraints-*.txt, from the root; it needs uv (pip install uv).
set -euo pipefail

readonly LOCKS=deploy/docker/locks
readonly PLATFORM=x86_64-manylinux_2_35  # what nvidia-pytriton needs; Debian 12 and Ubuntu 24.04 have more

# Args: name, Python, constraints, extras...
lock() {
  local name=$1 python=$2 constraints=$3
  local -a options=()
  local extra
  shift 3
  for extra in "$@"; do options+=(--extra "$extra"); done
  resolve "$LOCKS/$name.txt" "$python" "$constraints" "${options[@]}"
}

# Args: file to write, Python, constraints, options...
resolve() {
  local file=$1 python=$2 constraints=$3
  shift 3
  uv pip compile pyproject.toml -c "$constraints" --python-version "$python" --python-platform "$PLATFORM" \
    --generate-hashes --no-header --no-annotate --quiet --output-file "$file" "$@"
}

# The CPU build of torch is on an index of its own: the image installs it by exact version, and this lock leaves it out
# with what only the GPU build needs.
lock_without_torch() {
  local file=$LOCKS/$1.txt name
  local -a options=()
  lock "$@"
  while read -r name; do
    if [[ $name != nvidia-pytriton ]]; then options+=(--no-emit-package "$name"); fi
  done < <(sed -nE 's/^(torch|triton|(nvidia|cuda)-[^= ]*)==.*/\1/p' "$file")
  shift
  local python=$1 constraints=$2 extra
  shift 2
  for extra in "$@"; do options+=(--extra "$extra"); done
  resolve "$file" "$python" "$constraints" "${options[@]}"
}

mkdir -p "$LOCKS"
uv pip compile deploy/docker/build.in --universal --generate-hashes --no-header --no-annotate --quiet \
  --output-file "$LOCKS/build.txt"
lock gateway 3.12 deploy/constraints-cpu.txt text audio tracing
lock token2wav 3.12 deploy/constraints-gpu.txt token2wav gpu tracing
lock_without_torch cpu 3.11 deploy/constraints-cpu.txt text audio tracing token2wav cpu llm-embedded triton-embedded \
  checkpoint
