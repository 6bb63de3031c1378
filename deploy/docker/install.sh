#!/usr/bin/env bash
# What the images install, so that the same commands can be tried without Docker. Run from the root of the sources.
#
#   install.sh packages NAME DIR   a virtual environment in DIR with what locks/NAME.txt lists
#   install.sh project DIR         the project into that environment
#   install.sh folder DIR          the project alone in DIR, for a Python that has what it needs (vLLM's, TensorRT-LLM's)
#
# Every package comes by exact version and hash. torch's CPU build, for NAME cpu, is the exception: its index is
# $TORCH_INDEX, and its version is exact.
set -euo pipefail
# A base's own packages must not stand before those that are installed here.
unset PYTHONPATH

readonly LOCKS=deploy/docker/locks
readonly TORCH=torch==2.13.0+cpu
readonly TORCH_INDEX=${TORCH_INDEX:-https://download.pytorch.org/whl/cpu}
readonly PIP=(-m pip --disable-pip-version-check --no-cache-dir --quiet)

install_packages() {
  local name=$1 python=$2/bin/python
  python3 -m venv "$2"
  "$python" "${PIP[@]}" install --require-hashes -r "$LOCKS/build.txt"
  "$python" "${PIP[@]}" install --no-build-isolation --no-deps --require-hashes -r "$LOCKS/$name.txt"
  if [[ $name == cpu ]]; then
    "$python" "${PIP[@]}" install --no-deps --index-url "$TORCH_INDEX" "$TORCH"
  fi
}

install_project() {
  "$1/bin/python" "${PIP[@]}" install --no-build-isolation --no-deps .
  "$1/bin/python" "${PIP[@]}" check
}

install_folder() {
  local tools
  tools=$(mktemp -d)
  python3 -m venv "$tools"
  "$tools/bin/python" "${PIP[@]}" install --require-hashes -r "$LOCKS/build.txt"
  "$tools/bin/python" "${PIP[@]}" install --no-build-isolation --no-deps --target "$1" .
  rm -rf "$tools"
}

case ${1:-} in
  packages) install_packages "$2" "$3" ;;
  project) install_project "$2" ;;
  folder) install_folder "$2" ;;
  *)
    echo "usage: install.sh packages NAME DIR | project DIR | folder DIR" >&2
    exit 2
    ;;
esac
