#!/usr/bin/env bash
# Sets up, builds, serves and measures the whole system with CosyVoice3's flow, in the stages and on the ports of
# the script of this name of the runtime it replaces. `--help` prints the manual; README.DIT.md explains it.
# shellcheck disable=SC2034
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly ROOT
readonly SCRIPT=run_cosyvoice3.sh
readonly FAMILY=cosyvoice3
readonly PORTS=(8000 18000 18001 18002)
readonly MODELS=(random official)
readonly VERBS=()
readonly STAGES=(
  "-1 stage_environment environment (.venv)"
  "0 stage_checkpoint download or make the checkpoint"
  "1 stage_build verify it; build engines"
  "2 stage_assemble assemble the model repository"
  "3 stage_serve start both services and gateway"
  "4 stage_streaming_benchmark streaming benchmark over gRPC"
  "5 stage_offline_batches offline batch inference"
)
ORIGINAL_MODELS=${ORIGINAL_MODELS:-True}

# shellcheck source=deploy/lib/run.sh
source "$ROOT/deploy/lib/run.sh"
main "$@"
