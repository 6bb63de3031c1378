#!/usr/bin/env bash
# Sets up, builds, serves and measures the whole system, in the stages of the runtime it replaces.
# `--help` prints the manual; README.DIT.md explains it. Logic lives in Python: a stage is a few commands.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly ROOT
readonly VENV=$ROOT/.venv
readonly PYTHON=$VENV/bin/python
readonly TORCH=torch==2.13.0
readonly CPU_TORCH=torch==2.13.0+cpu
readonly CPU_TORCH_INDEX=https://download.pytorch.org/whl/cpu
readonly FIRST_STAGE=-1
readonly LAST_STAGE=8
readonly STOP_TIMEOUT_S=40

# Settings: environment first, flags override (see usage).
WORK_DIR=${COSYDIT_HOME:-$HOME/.cache/cosydit}
CHECKPOINT=${COSYDIT_CHECKPOINT:-}
MODEL=${COSYDIT_MODEL:-}
DEVICE=${COSYDIT_DEVICE:-auto}
OFFLINE=${COSYDIT_OFFLINE:-}
LOG_DIR=${COSYDIT_LOG_DIR:-}
MANIFEST=${COSYDIT_MANIFEST:-}
LLM_BACKEND=${LLM_BACKEND:-}
LLM_ENGINE=${LLM_ENGINE:-pytorch}
LLM_PORT=${LLM_PORT:-8000}
LLM_GRPC_PORT=${LLM_GRPC_PORT:-8100}
TRITON_HTTP_PORT=${TRITON_HTTP_PORT:-18000}
TRITON_GRPC_PORT=${TRITON_GRPC_PORT:-8001}
TRITON_METRICS_PORT=${TRITON_METRICS_PORT:-8002}
GATEWAY_PORT=${GATEWAY_PORT:-8080}
GATEWAY_GRPC_PORT=${GATEWAY_GRPC_PORT:-50051}
TOKEN2WAV_SERVERS=${TOKEN2WAV_SERVERS:-2}
DISAGGREGATED_HTTP_PORT=${DISAGGREGATED_HTTP_PORT:-17000}
DISAGGREGATED_GRPC_PORT=${DISAGGREGATED_GRPC_PORT:-18000}
DISAGGREGATED_METRICS_PORT=${DISAGGREGATED_METRICS_PORT:-16000}
NUM_TASKS=${NUM_TASKS:-4}
BATCH_SIZE=${BATCH_SIZE:-}
TOKEN2WAV_BATCH_SIZE=${TOKEN2WAV_BATCH_SIZE:-}
READY_TIMEOUT_S=${READY_TIMEOUT_S:-600}
DRY_RUN=
ASSEMBLER_SETTINGS=()
# The original's names, as environment variables.
for name in BLS_INSTANCE_NUM TRITON_MAX_BATCH_SIZE MAX_QUEUE_DELAY_MICROSECONDS DECOUPLED_MODE; do
  if [[ -n ${!name:-} ]]; then ASSEMBLER_SETTINGS+=("$name=${!name}"); fi
done
unset name

IS_VERIFIED=
# What resolve_host found for this host's GPU; empty on a CPU.
HOST_KEY=
HOST_SETTINGS=()
HOST_LLM_OPTIONS=()
HOST_WANTS_MPS=

# shellcheck source-path=SCRIPTDIR
source "$ROOT/deploy/lib/options.sh"
source "$ROOT/deploy/lib/environment.sh"
source "$ROOT/deploy/lib/services.sh"
source "$ROOT/deploy/lib/host.sh"

main() {
  local verb=${1:-}
  clear_python_path
  case $verb in
    say | install | check | test)
      shift
      resolve_device
      "verb_$verb" "$@"
      ;;
    *)
      parse_options "$@"
      check_settings
      run_stages
      ;;
  esac
}

verb_say() {
  if (($# == 0)); then fail_usage "say needs a TEXT"; fi
  stage_environment "$(runtime_extras)"
  exec "$VENV/bin/cosydit" say "$@"
}

# Everything that checks and tests need.
verb_install() {
  stage_environment "$(runtime_extras),test,docs"
}

verb_check() {
  verb_install
  cd "$ROOT"
  start_type_check
  check_all_but_types
  finish_type_check
}

# The types take the longest and one core, so the tests run beside them.
verb_test() {
  local status=0
  verb_install
  cd "$ROOT"
  start_type_check
  check_all_but_types
  log "tests"
  "$PYTHON" -m pytest --durations=30 --durations-min=1 "$@" || status=$?
  finish_type_check
  exit "$status"
}

check_all_but_types() {
  log "lint"
  "$PYTHON" -m ruff check .
  "$PYTHON" -m ruff format --check .
  log "unused code"
  "$PYTHON" -m vulture
  log "import layers"
  "$VENV/bin/lint-imports"
  log "documentation"
  NO_MKDOCS_2_WARNING=1 "$PYTHON" -m mkdocs build --strict --site-dir build/docs
}

# Sets TYPE_CHECK_PID and TYPE_CHECK_LOG; mypy gives way to what runs beside it, and ends with this script.
start_type_check() {
  TYPE_CHECK_LOG=$(mktemp)
  nice "$PYTHON" -m mypy >"$TYPE_CHECK_LOG" 2>&1 &
  TYPE_CHECK_PID=$!
  trap 'kill "$TYPE_CHECK_PID" 2>/dev/null || true; rm -f "$TYPE_CHECK_LOG"' EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM HUP
}

finish_type_check() {
  local status=0
  log "types"
  wait "$TYPE_CHECK_PID" || status=$?
  cat "$TYPE_CHECK_LOG"
  if ((status != 0)); then fail "mypy found errors in the types (above)"; fi
}

run_stages() {
  trap stop_everything EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM HUP
  local stage
  for ((stage = START; stage <= STOP; stage++)); do
    log "stage $stage: $(stage_title "$stage")"
    case $stage in
      -1) stage_environment "$(runtime_extras)" ;;
      0) stage_checkpoint ;;
      1) stage_build ;;
      2) stage_assemble ;;
      3) stage_serve ;;
      4) stage_streaming_benchmark ;;
      5) stage_offline_batch ;;
      6) stage_token2wav_alone ;;
      7) stage_disaggregated ;;
      8) stage_disaggregated_benchmark ;;
    esac
  done
  if [[ $STOP == 3 || $STOP == 7 ]]; then stay_until_stopped; fi
}

stage_title() {
  case $1 in
    -1) echo "environment" ;;
    0) echo "checkpoint ($MODEL)" ;;
    1) echo "verify and build" ;;
    2) echo "model repository" ;;
    3) echo "services" ;;
    4) echo "streaming benchmark" ;;
    5) echo "offline batch" ;;
    6) echo "token2wav alone" ;;
    7) echo "disaggregated services" ;;
    8) echo "disaggregated benchmark" ;;
  esac
}

# Args: the extras to install, separated by commas.
stage_environment() {
  local extras=$1 constraints stamp wanted
  constraints=$ROOT/deploy/constraints-$(environment_kind).txt
  if [[ -n $DRY_RUN ]]; then
    run python3 -m venv "$VENV"
    run "$PYTHON" -m pip install -c "$constraints" "$TORCH"
    run "$PYTHON" -m pip install -c "$constraints" -e "${ROOT}[$extras]"
    return
  fi
  make_venv
  stamp=$VENV/.installed-$(environment_kind)-${extras//,/-}
  wanted=$(cat "$ROOT/pyproject.toml" "$constraints" | sha256sum)
  if [[ -f $stamp && $(<"$stamp") == "$wanted" ]]; then
    log "environment: .venv is up to date"
  else
    rm -f "$stamp"
    announce_install
    log "environment, 1 of 2: $TORCH, the largest part"
    install_torch "$constraints"
    log "environment, 2 of 2: the project with $extras"
    pip_install -c "$constraints" -e "${ROOT}[$extras]"
    printf '%s\n' "$wanted" >"$stamp"
    log "environment: .venv is ready ($("$PYTHON" --version), $(installed_mb) MB, $((SECONDS - INSTALL_BEGAN_S)) s)"
  fi
  ensure_libpython
  ensure_compiler
}

stage_checkpoint() {
  if [[ -n $CHECKPOINT ]]; then
    log "using $CHECKPOINT as it is; nothing is downloaded"
  elif [[ $MODEL == demo ]]; then
    run "$VENV/bin/cosydit" checkpoint unpack-demo "$(checkpoint_dir)"
  elif [[ $MODEL == random ]]; then
    if [[ -f $(checkpoint_dir)/README.md ]]; then
      log "$(checkpoint_dir) is there already"
    else
      run "$VENV/bin/cosydit" checkpoint make-random "$(checkpoint_dir)"
    fi
    log "random weights: everything works, and it speaks noise"
  else
    stage_environment "$(runtime_extras),download"
    local -a options=(--lock "$ROOT/deploy/models.lock.json" --own-lock "$WORK_DIR/models.lock.json")
    if [[ -n $OFFLINE ]]; then options+=(--offline); fi
    run "$VENV/bin/cosydit" download "$(checkpoint_dir)" "${options[@]}"
  fi
  verify_checkpoint
}

stage_build() {
  verify_checkpoint
  build_engines
  build_llm
}

# TensorRT engines where they can be built; quick when they are there.
build_engines() {
  local model_dir
  model_dir=$(checkpoint_dir)/token2wav
  if [[ $DEVICE != cuda ]] || ! "$PYTHON" -c 'import tensorrt' 2> /dev/null; then
    log "skipped: TensorRT engines for token2wav (they need a GPU and: pip install -e '.[tensorrt]')"
    return
  fi
  run "$VENV/bin/cosydit" export "$model_dir" --out "$model_dir/onnx" --precision float16 --only estimator_chunk
  run "$VENV/bin/cosydit" build-engines "$model_dir" --precision float16
}

# The form of the LLM that keeps its head's bias, and TensorRT-LLM's engine if that is to run; quick when they are there.
build_llm() {
  resolve_host
  if [[ $LLM_BACKEND == embedded ]]; then
    log "skipped: conversion of the LLM; the embedded LLM service reads $(checkpoint_dir)/llm as it is"
    return
  fi
  convert_llm
  if [[ $LLM_BACKEND != trtllm || $LLM_ENGINE != tensorrt ]]; then return; fi
  run "$VENV/bin/cosydit" convert-llm trtllm "$(checkpoint_dir)/llm" "$WORK_DIR/llm_trtllm_checkpoint" --dtype bfloat16
  run "$VENV/bin/cosydit" convert-llm build "$WORK_DIR/llm_trtllm_checkpoint" "$WORK_DIR/llm_engine" \
    --max-batch-size 64 --max-num-tokens 32768
  run "$VENV/bin/cosydit" convert-llm test --backend trtllm --model-dir "$WORK_DIR/llm_engine" \
    --source-dir "$WORK_DIR/llm_converted" --tolerance 2
}

# The form that vLLM and trtllm-serve serve without loss; quick when it is there.
convert_llm() {
  run "$VENV/bin/cosydit" convert-llm huggingface "$(checkpoint_dir)/llm" "$WORK_DIR/llm_converted" --dtype bfloat16
}

# Has what llm_dir names. An engine is built by stage 1 alone.
ensure_llm_form() {
  if [[ $(llm_dir) == "$WORK_DIR/llm_converted" ]]; then convert_llm; fi
}

# What the LLM service serves.
llm_dir() {
  if [[ $LLM_BACKEND == embedded ]]; then
    printf '%s\n' "$(checkpoint_dir)/llm"
  elif [[ $LLM_BACKEND == trtllm && $LLM_ENGINE == tensorrt ]]; then
    printf '%s\n' "$WORK_DIR/llm_engine"
  else
    printf '%s\n' "$WORK_DIR/llm_converted"
  fi
}

stage_assemble() {
  resolve_host
  assemble_repository "$WORK_DIR/model_repository" "$TRITON_GRPC_PORT"
}

stage_serve() {
  require_free_ports "$LLM_PORT" "$TRITON_HTTP_PORT" "$TRITON_GRPC_PORT" "$TRITON_METRICS_PORT" "$GATEWAY_PORT" \
    "$GATEWAY_GRPC_PORT"
  resolve_host
  if [[ $(token_url) == grpc:* ]]; then require_free_ports "$LLM_GRPC_PORT"; fi
  ensure_llm_form
  start_mps
  start_llm
  start_triton token2wav_service "$WORK_DIR/model_repository" \
    "$TRITON_HTTP_PORT" "$TRITON_GRPC_PORT" "$TRITON_METRICS_PORT"
  wait_ready llm_service "$LLM_PORT" /health
  wait_ready token2wav_service "$TRITON_HTTP_PORT" /v2/health/ready
  start_service gateway "$PYTHON" -m gateway --port "$GATEWAY_PORT" \
    --llm-url "$(token_url)" --llm-backend "$LLM_BACKEND" --token2wav-url "127.0.0.1:$TRITON_GRPC_PORT" \
    --tokenizer-dir "$(checkpoint_dir)/llm" --voices-dir "$(checkpoint_dir)/voices" --grpc-port "$GATEWAY_GRPC_PORT"
  wait_ready gateway "$GATEWAY_PORT" /readyz
  log "LLM service http://127.0.0.1:$LLM_PORT"
  log "Triton      gRPC 127.0.0.1:$TRITON_GRPC_PORT, HTTP $TRITON_HTTP_PORT, metrics $TRITON_METRICS_PORT"
  log "gateway     http://127.0.0.1:$GATEWAY_PORT/v1/audio/speech, gRPC 127.0.0.1:$GATEWAY_GRPC_PORT"
}

stage_streaming_benchmark() {
  start_streaming_client "$TRITON_GRPC_PORT" "$TRITON_METRICS_PORT" "$LOG_DIR/streaming_grpc"
  wait_clients
}

# Uses the services of stage 3 if this script started them, else brings its own.
stage_offline_batch() {
  local manifest=$MANIFEST
  local -a sizes=() services=(--token2wav-path "$(checkpoint_dir)/token2wav" --device "$DEVICE")
  resolve_host
  if ((${#SERVICE_PIDS[@]} > 0)) || [[ -n $DRY_RUN && $START -le 3 ]]; then
    services=(--llm-url "http://127.0.0.1:$LLM_PORT" --token2wav-url "127.0.0.1:$TRITON_GRPC_PORT")
  fi
  if [[ -n ${BATCH_SIZE:=$(default_batch_size)} ]]; then sizes+=(--batch-size "$BATCH_SIZE"); fi
  if [[ -n ${TOKEN2WAV_BATCH_SIZE:=$(default_batch_size)} ]]; then
    sizes+=(--token2wav-batch-size "$TOKEN2WAV_BATCH_SIZE")
  fi
  if [[ -z $manifest ]]; then
    manifest=$LOG_DIR/samples.txt
    if [[ -z $DRY_RUN ]]; then write_sample_manifest "$manifest"; fi
  fi
  run "$PYTHON" -m benchmarks.offline_batch --manifest-path "$manifest" --output-dir "$LOG_DIR/offline_batch" \
    --backend "$LLM_BACKEND" --llm-model-name-or-path "$(checkpoint_dir)/llm" "${services[@]}" "${sizes[@]}"
}

stage_token2wav_alone() {
  local setting
  local -a settings=(--set "device=$DEVICE")
  stop_services
  resolve_host
  for setting in "${HOST_SETTINGS[@]}"; do
    if [[ $setting != TRITON_* ]]; then settings+=(--set "$setting"); fi
  done
  run "$PYTHON" -m benchmarks.token2wav --model-dir "$(checkpoint_dir)/token2wav" "${settings[@]}" \
    --log-dir "$LOG_DIR/token2wav"
}

stage_disaggregated() {
  stop_services
  local i name
  local -a shared=()
  if (($(gpu_count) > 1)); then
    shared=(--alone --servers-a-gpu $(((TOKEN2WAV_SERVERS + $(gpu_count) - 2) / ($(gpu_count) - 1))))
  else
    shared=(--servers-a-gpu "$TOKEN2WAV_SERVERS")
  fi
  resolve_host "${shared[@]}"
  ensure_llm_form
  start_mps
  require_free_ports "$LLM_PORT"
  for ((i = 0; i < TOKEN2WAV_SERVERS; i++)); do
    require_free_ports $((DISAGGREGATED_HTTP_PORT + i)) $((DISAGGREGATED_GRPC_PORT + i)) \
      $((DISAGGREGATED_METRICS_PORT + i))
  done
  start_llm "$(gpu_of_llm)"
  for ((i = 0; i < TOKEN2WAV_SERVERS; i++)); do
    assemble_repository "$WORK_DIR/model_repository_$i" $((DISAGGREGATED_GRPC_PORT + i)) "$TOKEN2WAV_SERVERS"
    start_triton "token2wav_service_$i" "$WORK_DIR/model_repository_$i" $((DISAGGREGATED_HTTP_PORT + i)) \
      $((DISAGGREGATED_GRPC_PORT + i)) $((DISAGGREGATED_METRICS_PORT + i)) "$(gpu_of_server "$i")"
  done
  wait_ready llm_service "$LLM_PORT" /health
  for ((i = 0; i < TOKEN2WAV_SERVERS; i++)); do
    name=token2wav_service_$i
    wait_ready "$name" $((DISAGGREGATED_HTTP_PORT + i)) /v2/health/ready
    log "$name: HTTP $((DISAGGREGATED_HTTP_PORT + i)), gRPC $((DISAGGREGATED_GRPC_PORT + i))"
  done
}

stage_disaggregated_benchmark() {
  local i directory status=0
  local -a directories=()
  for ((i = 0; i < TOKEN2WAV_SERVERS; i++)); do
    directory=$LOG_DIR/disaggregated/server_$i
    directories+=("$directory")
    start_streaming_client $((DISAGGREGATED_GRPC_PORT + i)) $((DISAGGREGATED_METRICS_PORT + i)) "$directory"
  done
  wait_clients || status=$?
  run "$PYTHON" -m benchmarks.combine "${directories[@]}"
  return "$status"
}

verify_checkpoint() {
  if [[ -n $IS_VERIFIED ]]; then return; fi
  run "$VENV/bin/cosydit" checkpoint verify "$(checkpoint_dir)"
  IS_VERIFIED=1
}

# Writes the bundled sentences (utt|text) in the default voice as utt|prompt_text|prompt_wav|text. Args: file to write.
write_sample_manifest() {
  local voice transcript
  voice=$(checkpoint_dir)/voices/default
  transcript=$(<"$voice.txt")
  mkdir -p "$(dirname "$1")"
  WAV=$voice.wav TRANSCRIPT=$transcript awk -F '|' \
    '{ print $1 "|" ENVIRON["TRANSCRIPT"] "|" ENVIRON["WAV"] "|" $2 }' "$ROOT/demo_voice/samples/english.txt" >"$1"
}

# Args: folder to write, gRPC port of the Triton that will serve it [, how many share the cores].
assemble_repository() {
  local -a settings=(
    "model_dir=$(checkpoint_dir)/token2wav" "llm_tokenizer_dir=$(checkpoint_dir)/llm"
    "voices_dir=$(checkpoint_dir)/voices" "llm_api_base=http://127.0.0.1:$LLM_PORT" "llm_backend=$LLM_BACKEND"
    "triton_grpc_address=127.0.0.1:$2" "device=$DEVICE" "${HOST_SETTINGS[@]}"
  )
  if [[ $DEVICE == cpu && " ${ASSEMBLER_SETTINGS[*]}" != *" num_threads="* ]]; then
    settings+=("num_threads=$(token2wav_threads "${3:-1}")")
  fi
  run "$PYTHON" -m token2wav_service.serving.assemble --output "$1" "${settings[@]}" "${ASSEMBLER_SETTINGS[@]}"
}

# Args: [number of the GPU it may use].
start_llm() {
  local -a gpu=() options=(--backend "$LLM_BACKEND" --model-dir "$(llm_dir)" --port "$LLM_PORT")
  if [[ $LLM_BACKEND != embedded ]]; then options+=(--tokenizer-dir "$(checkpoint_dir)/llm"); fi
  if [[ -n ${1:-} ]]; then gpu=(env "CUDA_VISIBLE_DEVICES=$1"); fi
  if [[ $LLM_BACKEND == embedded && " ${HOST_LLM_OPTIONS[*]} " != *" --device "* ]]; then options+=(--device "$DEVICE"); fi
  if [[ $LLM_BACKEND == embedded && $DEVICE == cpu ]]; then options+=(--num-threads "$(llm_threads)"); fi
  if [[ $(token_url) == grpc:* ]]; then options+=(--grpc-port "$LLM_GRPC_PORT"); fi
  options+=("${HOST_LLM_OPTIONS[@]}")
  start_service llm_service "${gpu[@]}" "$PYTHON" -m llm_service "${options[@]}"
}

# Where the gateway takes tokens: our own engine on a GPU outruns HTTP.
token_url() {
  if [[ $LLM_BACKEND == embedded && $DEVICE == cuda ]]; then
    echo "grpc://127.0.0.1:$LLM_GRPC_PORT"
  else
    echo "http://127.0.0.1:$LLM_PORT"
  fi
}

# Args: name, model repository, HTTP port, gRPC port, metrics port [, number of the GPU it may use].
start_triton() {
  local -a gpu=()
  if [[ -n ${6:-} ]]; then gpu=(env "CUDA_VISIBLE_DEVICES=$6"); fi
  start_service "$1" "${gpu[@]}" "$PYTHON" -m token2wav_service.serving --model-repository "$2" \
    --http-port "$3" --grpc-port "$4" --metrics-port "$5"
}

# With several GPUs the LLM has the first to itself and the token2wav servers share the others in turn; else these
# print nothing, and all share what there is.
gpu_of_llm() {
  if (($(gpu_count) > 1)); then echo 0; fi
}

gpu_of_server() {
  local count
  count=$(gpu_count)
  if ((count > 1)); then echo $(($1 % (count - 1) + 1)); fi
}

# Without a GPU the LLM has half of the cores and the token2wav servers the other half; everybody has at least one.
llm_threads() {
  local cores
  cores=$(nproc)
  echo $((cores > 1 ? cores / 2 : 1))
}

# Args: how many servers share them.
token2wav_threads() {
  local share
  share=$((($(nproc) - $(llm_threads)) / $1))
  echo $((share > 0 ? share : 1))
}

# Without a GPU few texts at once; with one the batch chooses by its memory.
default_batch_size() {
  if [[ $DEVICE == cpu ]]; then echo 4; fi
}

gpu_count() {
  if [[ $DEVICE == cuda ]]; then nvidia-smi -L 2>/dev/null | wc -l; else echo 0; fi
}

# Starts a benchmark in the background. Args: gRPC port, metrics port, folder of the results.
start_streaming_client() {
  local mode=streaming setting
  for setting in "${ASSEMBLER_SETTINGS[@]}"; do
    if [[ ${setting,,} == decoupled_mode=false ]]; then mode=offline; fi
  done
  local -a texts=(--voices-dir "$(checkpoint_dir)/voices")
  if [[ -n $MANIFEST ]]; then texts=(--manifest-path "$MANIFEST"); fi
  start_client "$PYTHON" -m benchmarks.streaming_grpc --server-addr 127.0.0.1 --server-port "$1" --metrics-port "$2" \
    --model-name "$(drop_in_model)" --mode "$mode" --num-tasks "$NUM_TASKS" "${texts[@]}" --log-dir "$3"
}

# Prints what the drop-in is called for the checkpoint's family.
drop_in_model() {
  local family
  for family in cosyvoice2 cosyvoice3; do
    if [[ -f $(checkpoint_dir)/token2wav/$family.yaml ]]; then
      echo "$family"
      return
    fi
  done
  echo cosyvoice2_dit
}

checkpoint_dir() {
  if [[ -n $CHECKPOINT ]]; then
    echo "$CHECKPOINT"
  elif [[ $MODEL == demo ]]; then
    echo "$WORK_DIR/demo-voice"
  elif [[ $MODEL == random ]]; then
    echo "$WORK_DIR/random-checkpoint-0"
  else
    echo "$WORK_DIR/official-checkpoint"
  fi
}

log() {
  printf '[%s] %s\n' "$(date +%H:%M:%S)" "$*" >&2
}

fail() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

fail_usage() {
  printf 'error: %s\n\n' "$*" >&2
  usage >&2
  exit 2
}

main "$@"
