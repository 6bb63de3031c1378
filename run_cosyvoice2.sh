#!/usr/bin/env bash
# Sets up, builds, serves and measures the whole system with CosyVoice2's U-Net flow, in the stages and on the ports of
# run.sh of the runtime it replaces. `--help` prints the manual; README.DIT.md explains it.
# shellcheck disable=SC2034
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly ROOT
readonly SCRIPT=run_cosyvoice2.sh
readonly FAMILY=cosyvoice2
readonly PORTS=(8003 8000 8001 8002)
readonly MODELS=(random official)
readonly VERBS=()
readonly STAGES=(
  "-1 stage_environment environment (.venv)"
  "0 stage_checkpoint download or make the checkpoint"
  "1 stage_build verify it; build engines"
  "2 stage_assemble assemble the model repository"
  "3 stage_serve start both services and gateway"
  "4 stage_http_client one request by HTTP (DECOUPLED_MODE=False)"
  "5 stage_streaming_benchmark streaming benchmark over gRPC"
  "6 stage_offline_batches offline batch inference"
)
BLS_INSTANCE_NUM=${BLS_INSTANCE_NUM:-4}
ORIGINAL_MODELS=${ORIGINAL_MODELS:-True}

# shellcheck source=deploy/lib/run.sh
source "$ROOT/deploy/lib/run.sh"
main "$@"
