#!/usr/bin/env bash
# Sets up, builds, serves and measures the whole system with Step-Audio2's flow (or any checkpoint given), in the stages of
# the script of this name in the runtime it replaces. `--help` prints the manual; README.DIT.md explains it.
# shellcheck disable=SC2034
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly ROOT
readonly SCRIPT=run_stepaudio2_dit_token2wav.sh
readonly FAMILY=step_audio2
readonly PORTS=(8000 18000 8001 8002)
readonly MODELS=(demo random official)
readonly VERBS=(say install check test)
readonly STAGES=(
  "-1 stage_environment environment (.venv)"
  "0 stage_checkpoint download or make the checkpoint"
  "1 stage_build verify it; build engines"
  "2 stage_assemble assemble the model repository"
  "3 stage_serve start both services and gateway"
  "4 stage_streaming_benchmark streaming benchmark over gRPC"
  "5 stage_offline_batch offline batch inference"
  "6 stage_token2wav_alone token2wav alone"
  "7 stage_disaggregated disaggregated: the LLM apart, several token2wav servers"
  "8 stage_disaggregated_benchmark benchmark of stage 7"
)

# shellcheck source=deploy/lib/run.sh
source "$ROOT/deploy/lib/run.sh"
main "$@"
