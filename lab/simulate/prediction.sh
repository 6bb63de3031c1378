#!/usr/bin/env bash
# Takes the simulator's figures on one GPU: fits it, has it predict, measures. The environment is that of benchmarks/gpu.sh.
set -euo pipefail

# shellcheck source=../../benchmarks/gpu.sh
source "$(dirname "${BASH_SOURCE[0]}")/../../benchmarks/gpu.sh"

# Fits the simulator to some runs on this host, has it predict others, makes those too, and says how far off it was.
# The runs are long: the figures of short ones differ by chance by as much as is asked of a prediction, those of a closed
# loop most, whose callers all begin at once.
# A prediction that is there stays: one that was made after its measurement would be refused.
part_prediction() {
  local runs=$OUT/${NAME}_capacity model=$OUT/cost_model_$NAME.json predicted=$OUT/prediction_$NAME.json
  is_done "$OUT/${NAME}_prediction.json" && return
  start_services
  measure "$(setting)" "$runs" --closed 1 16 32 64 --open 12 20 32 --open-s 33 --requests-a-caller 24 --unseen 0
  if ! is_done "$predicted"; then
    "$PYTHON" -m lab.simulate fit --gpu "$NAME" --engine "$(engine_figures)" --end-to-end "$runs" \
      --callers 1 16 32 64 --rates 12 20 32 --processes "$(nproc)" --out "$model"
    "$PYTHON" -m lab.simulate predict --model "$model" --callers 24 48 --rates 15 25 \
      --open-s 60 --requests-a-caller 40 --processes "$(nproc)" --out "$predicted"
  fi
  measure "$(setting)" "$runs" --closed 24 48 --open 15 25 --open-s 60 --requests-a-caller 40 --unseen 0
  stop_services
  "$PYTHON" -m lab.simulate.verify_prediction --prediction "$predicted" --model "$model" --measured "$runs" \
    --out "$OUT/${NAME}_prediction.json"
}

# What part `engine` measured here, else on the H200.
engine_figures() {
  local here=$OUT/${NAME}_engine.json
  if [[ -e $here ]]; then echo "$here"; else echo benchmarks/results/h200_engine.json; fi
}

setting() {
  cat <<JSON
{"llm": "$LLM_BACKEND, Qwen2-0.5B sizes, bfloat16, batch 64", "token2wav": "float16, 10 ODE steps, batch 64",
 "audio_s": 8, "prompt_s": 5, "chunks": "deadline", "gpus": 1, "mps": "$MPS",
 "vllm_v2_model_runner": "$VLLM_USE_V2_MODEL_RUNNER"}
JSON
}

# A server with settings given by hand, for the simulator, whose model is of such a one.
start_services() {
  local checkpoint=$WORK/checkpoint
  start_mps
  make_checkpoint "$checkpoint" step_audio2
  start_server --checkpoint "$checkpoint" --work-dir "$WORK" \
    --bls-instance-num 1 --token2wav-device cuda --token2wav-dtype float16 --triton-max-batch-size 64 \
    --token2wav-max-streams 400 --token2wav-voice-cache-bytes 20000000000 \
    --llm-backend "$LLM_BACKEND" $(llm_options) --llm-max-speech-tokens 200 --dynamic-chunk-strategy deadline
}

llm_options() {
  printf -- '--llm-kv-cache-free-gpu-memory-fraction 0.25'
  if [[ $LLM_BACKEND != auto ]]; then printf -- ' --llm-max-batch-size 64'; fi
}

cd "$ROOT"
mkdir -p "$OUT" "$WORK"
trap stop_services EXIT
part_prediction
