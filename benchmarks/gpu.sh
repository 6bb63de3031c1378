#!/usr/bin/env bash
# Takes every GPU figure again: full size, random weights, one GPU, the last part more. See usage.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
readonly ROOT
readonly PARTS=(engine precision families end_to_end without_mps offline figures llm_form disaggregated)
readonly UNFINISHED=3
PYTHON=${PYTHON:-$ROOT/.venv/bin/python}
OUT=${OUT:-$ROOT/benchmarks/results}
NAME=${NAME:-gpu}
WORK=${WORK:-${TMPDIR:-/tmp}/cosydit-gpu}
LLM_BACKEND=${LLM_BACKEND:-auto}
LIMIT_S=${LIMIT_S:-460}
FAMILIES=${FAMILIES:-cosyvoice2 cosyvoice3}
OFFLINE_BATCH_SIZE=${OFFLINE_BATCH_SIZE:-256}
OFFLINE_TOKEN2WAV_BATCH_SIZE=${OFFLINE_TOKEN2WAV_BATCH_SIZE:-64}
READY_TIMEOUT_S=180
GPUS=1
SERVE_OPTIONS=()
if command -v nvidia-cuda-mps-control > /dev/null; then MPS=${MPS:-on}; else MPS=off; fi
# As the launcher chooses for the converted form; vLLM's newer runner (1) draws without repetition-aware sampling.
export VLLM_USE_V2_MODEL_RUNNER=${VLLM_USE_V2_MODEL_RUNNER:-0}
SERVER_PID=
HAS_MPS=

usage() {
  cat <<USAGE
Usage: benchmarks/gpu.sh [PART ...]

Parts (default: all, in this order): ${PARTS[*]}.
Each part takes at most 9 minutes on an H200 (families 7 each), writes OUT/NAME_* (offline:
OUT/offline_NAME.json), and is skipped if its result is there; sweeps go on where they were stopped. disaggregated needs two
GPUs or more. Environment: NAME (default gpu), OUT (benchmarks/results), PYTHON (.venv/bin/python), WORK (scratch, 4 GB),
LIMIT_S (of a sweep), FAMILIES (cosyvoice2 cosyvoice3), MPS (on or off; on where there is nvidia-cuda-mps-control), COMMIT
(where there is no git). Of offline and llm_form: LLM_BACKEND (auto: our own engine unless trtllm-serve works;
vllm or trtllm, on PATH), VLLM_USE_V2_MODEL_RUNNER (0), OFFLINE_BATCH_SIZE and OFFLINE_TOKEN2WAV_BATCH_SIZE (utterances in
each service at once: 256, 64).
Stage -1 of run_stepaudio2_dit_token2wav.sh makes the .venv.
USAGE
}

main() {
  local part
  if [[ ${1:-} == -h || ${1:-} == --help ]]; then usage; return; fi
  cd "$ROOT"
  mkdir -p "$OUT" "$WORK"
  trap stop_services EXIT
  for part in "${@:-${PARTS[@]}}"; do
    case $part in
      engine | precision | families | end_to_end | without_mps | offline | figures | llm_form | disaggregated)
        "part_$part" ;;
      *) usage >&2; return 2 ;;
    esac
  done
}

commit_option() { if [[ -n ${COMMIT:-} ]]; then printf -- '--commit\n%s\n' "$COMMIT"; fi; }

is_done() {
  if [[ ! -e $1 ]]; then return 1; fi
  echo "$1 is there; remove it to measure again"
}

part_engine() {
  local options
  is_done "$OUT/${NAME}_engine.json" && return
  mapfile -t options < <(commit_option)
  "$PYTHON" -m benchmarks.engine_gpu --out "$OUT/${NAME}_engine.json" "${options[@]}"
}

part_precision() {
  is_done "$OUT/${NAME}_precision.json" && return
  "$PYTHON" -m benchmarks.precision_gpu --out "$OUT/${NAME}_precision.json"
}

# CosyVoice2 and CosyVoice3: the engine alone, a plain `serve` with one caller and 16 requests a second, and 512
# utterances of about 8 s in a plain `batch`; first a look at whether this GPU's graphs hold them, which takes a minute
# each. All figures are in OUT/NAME_families.json.
part_families() {
  local family
  for family in $FAMILIES; do
    family_engine "$family"
    family_end_to_end "$family"
    family_offline "$family"
    "$PYTHON" -m benchmarks.figures --family "$family" --engine "$OUT/${NAME}_${family}_engine.json" \
      --end-to-end "$OUT/${NAME}_${family}_end_to_end" --offline "$OUT/offline_${NAME}_${family}.json" \
      --out "$OUT/${NAME}_families.json"
    rm -rf "${WORK:?}/$family"
  done
}

family_engine() {
  local options out=$OUT/${NAME}_${1}_engine.json
  is_done "$out" && return
  mapfile -t options < <(commit_option)
  "$PYTHON" -m benchmarks.engine_gpu --family "$1" --quick --out "$WORK/${1}_quick.json" "${options[@]}"
  "$PYTHON" -m benchmarks.engine_gpu --family "$1" --out "$out" "${options[@]}"
}

family_end_to_end() {
  local options out=$OUT/${NAME}_${1}_end_to_end status=0
  local plain='{"serve_options": "--llm-max-speech-tokens 200", "audio_s": 8, "prompt_s": 5}'
  is_done "$out/summary.txt" && return
  mapfile -t options < <(commit_option)
  make_checkpoint "$WORK/$1" "$1" 64
  start_server --checkpoint "$WORK/$1" --work-dir "$WORK/serve_$1" --llm-max-speech-tokens 200
  mkdir -p "$out"
  "$PYTHON" -m benchmarks.end_to_end --out "$out" --closed 1 --open 16 --open-s 30 --unseen 0 --warm-up-burst 32 \
    --setting "$plain" "${options[@]}" | tee "$WORK/summary.txt" || status=$?
  stop_services
  # 1: requests failed, which the figures tell.
  if ((status > 1)); then return "$status"; fi
  mv "$WORK/summary.txt" "$out/summary.txt"
}

family_offline() {
  local options out=$OUT/offline_${NAME}_${1}.json
  is_done "$out" && return
  mapfile -t options < <(commit_option)
  make_checkpoint "$WORK/$1" "$1" 64
  make_texts "$WORK/$1"
  "$PYTHON" -m benchmarks.offline_batch --checkpoint "$WORK/$1" --jsonl-path "$WORK/offline.jsonl" \
    --output-dir "$WORK/offline" --warm-up 64 --figures "$out" \
    --setting '{"batch_options": "none but the list", "prompt_s": 5}' "${options[@]}"
}

# A plain `serve`, which chooses every setting by the host. The loads of the published table, then those of tts_bench.
part_end_to_end() {
  sweep "$OUT/${NAME}_end_to_end" --closed 1 --open 10 20 32 64 80 100 --audible 1 6 10 20 32 --unseen 12
}

part_without_mps() { MPS=off sweep "$OUT/${NAME}_without_mps" --closed 1 --open 32 --unseen 0; }

# The converted form of the LLM, which keeps its head's bias, in the server that LLM_BACKEND names.
part_llm_form() {
  local checkpoint=$WORK/checkpoint
  make_checkpoint "$checkpoint" step_audio2
  if [[ ! -d $WORK/llm_converted ]]; then
    "$PYTHON" -m cosydit.cli.main convert-llm huggingface "$checkpoint/llm" "$WORK/llm_converted" --dtype bfloat16
  fi
  "$PYTHON" -m cosydit.cli.main convert-llm test --backend "$LLM_BACKEND" --model-dir "$WORK/llm_converted" \
    --tolerance 2 --certificate "$OUT/${NAME}_llm_form.json"
}

# A plain `serve` with the LLM on the first GPU and token2wav on one, two... others.
part_disaggregated() {
  local n count gpus status=0
  count=$(nvidia-smi -L | wc -l)
  if ((count < 2)); then
    echo "disaggregated needs two GPUs or more, got $count" >&2
    return 1
  fi
  for ((n = 1; n < count; n++)); do
    gpus=$(seq -s , "$n")
    SERVE_OPTIONS=(--llm-gpu 0 --token2wav-gpus "$gpus" --token2wav-replicas "$n")
    GPUS=$((n + 1)) sweep "$OUT/${NAME}_disaggregated_1+${n}_1" --closed $((2 * n)) $((12 * n)) \
      --open $((32 * n)) $((64 * n)) --unseen 0 || status=$?
  done
  SERVE_OPTIONS=()
  return "$status"
}

# Starts a plain server. Args: folder of the samples, further options of benchmarks.end_to_end.
sweep() {
  local status=0
  is_done "$1/summary.txt" && return
  mkdir -p "$1"
  start_mps
  make_checkpoint "$WORK/checkpoint" step_audio2
  start_server --checkpoint "$WORK/checkpoint" --work-dir "$WORK" --llm-max-speech-tokens 200 \
    "${SERVE_OPTIONS[@]}"
  measure "$(plain_setting)" "$@" --open-s 20 --warm-up-burst 32 | tee "$WORK/summary.txt" || status=$?
  stop_services
  if ((status == 0)); then mv "$WORK/summary.txt" "$1/summary.txt"; fi
  if ((status == UNFINISHED)); then echo "run this part again"; fi
  return "$status"
}

# Needs the services. Args: what is said of them, folder of the samples, further options of benchmarks.end_to_end.
measure() {
  local options
  mapfile -t options < <(commit_option)
  "$PYTHON" -m benchmarks.end_to_end --out "$2" --limit-s "$LIMIT_S" --setting "$1" "${@:3}" "${options[@]}"
}

# 512 utterances of about 8 s in 64 voices, both services on one GPU, 256 requests in the LLM.
part_offline() {
  local options checkpoint=$WORK/checkpoint
  is_done "$OUT/offline_$NAME.json" && return
  mapfile -t options < <(commit_option)
  make_checkpoint "$checkpoint" step_audio2
  make_texts "$checkpoint"
  start_mps
  "$PYTHON" -m benchmarks.offline_batch --jsonl-path "$WORK/offline.jsonl" --output-dir "$WORK/offline" \
    --backend "$LLM_BACKEND" --llm-model-name-or-path "$checkpoint/llm" --batch-size "$OFFLINE_BATCH_SIZE" \
    --kv-cache-free-gpu-memory-fraction 0.35 --llm-set max_seq_len=2048 \
    --token2wav-path "$checkpoint/token2wav" --token2wav-batch-size "$OFFLINE_TOKEN2WAV_BATCH_SIZE" \
    --token2wav-set device=cuda --token2wav-set dtype=float16 --token2wav-set voice_cache_bytes=20000000000 \
    --warm-up 64 --figures "$OUT/offline_$NAME.json" --setting "$(offline_setting)" "${options[@]}"
  stop_mps
}

# The list for an offline batch of a checkpoint; what an earlier one spoke is thrown away.
make_texts() {
  "$PYTHON" -m benchmarks.offline_input --llm-model-name-or-path "$1/llm" --voices-dir "$1/voices" \
    --rows 512 --voices 64 --seconds 8 --out "$WORK/offline.jsonl"
  rm -rf "$WORK/offline"
}

part_figures() {
  local others=()
  if [[ -e $OUT/${NAME}_without_mps ]]; then others=(--without-mps "$OUT/${NAME}_without_mps"); fi
  "$PYTHON" -m benchmarks.figures --engine "$OUT/${NAME}_engine.json" --end-to-end "$OUT/${NAME}_end_to_end" \
    "${others[@]}" --out "$OUT/$NAME.json" --plot "$OUT/$NAME.png"
}

plain_setting() {
  cat <<JSON
{"serve": "plain, --llm-max-speech-tokens 200 ${SERVE_OPTIONS[*]}", "gpus": $GPUS, "mps": "$MPS"}
JSON
}

offline_setting() {
  cat <<JSON
{"llm": "$LLM_BACKEND, Qwen2-0.5B sizes, bfloat16, batch $OFFLINE_BATCH_SIZE",
 "token2wav": "float16, 10 ODE steps, batch $OFFLINE_TOKEN2WAV_BATCH_SIZE", "audio_s": "6.4 to 9.6", "prompt_s": 5,
 "gpus": 1, "mps": "$MPS", "vllm_v2_model_runner": "$VLLM_USE_V2_MODEL_RUNNER"}
JSON
}

# Two processes share the GPU: under MPS their kernels run side by side, without it they take turns of milliseconds.
start_mps() {
  if [[ $MPS != on ]]; then
    export COSYDIT_MPS=off  # else a plain server starts it
    return
  fi
  unset COSYDIT_MPS
  export CUDA_MPS_PIPE_DIRECTORY=$WORK/mps CUDA_MPS_LOG_DIRECTORY=$WORK/mps-log
  mkdir -p "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
  nvidia-cuda-mps-control -d
  HAS_MPS=1
}

stop_mps() {
  if [[ -n $HAS_MPS ]]; then echo quit | nvidia-cuda-mps-control > /dev/null 2>&1 || true; fi
  HAS_MPS=
}

# Args: of `cosydit serve`.
start_server() {
  : > "$WORK/serve.log"  # an earlier server's says that it is ready
  setsid "$PYTHON" -m cosydit.cli.main serve "$@" > "$WORK/serve.log" 2>&1 < /dev/null &
  SERVER_PID=$!
  wait_for_services
}

# Args: directory, family, number of voices (90).
make_checkpoint() {
  if [[ -d $1 ]]; then return; fi
  "$PYTHON" -m cosydit.cli.main checkpoint make-random "$1" --family "$2" --size official --numbered-voices "${3:-90}"
}

wait_for_services() {
  local waited
  for ((waited = 0; waited < READY_TIMEOUT_S; waited++)); do
    if grep -q '^speak:' "$WORK/serve.log"; then return; fi
    if ! kill -0 "$SERVER_PID" 2> /dev/null; then break; fi
    sleep 1
  done
  echo "the services are not ready; the end of $WORK/serve.log:" >&2
  tail -n 20 "$WORK/serve.log" >&2
  return 1
}

stop_services() {
  if [[ -n $SERVER_PID ]]; then
    kill -TERM "$SERVER_PID" 2> /dev/null || true
    wait "$SERVER_PID" 2> /dev/null || true
    SERVER_PID=
  fi
  stop_mps
}

if [[ ${BASH_SOURCE[0]} == "$0" ]]; then main "$@"; fi
