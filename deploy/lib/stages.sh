# shellcheck shell=bash disable=SC2153
# The stages of the run scripts, and what several of them share. Sourced; needs the settings of run.sh (hence SC2153).

stage_environment() {
  install_extras "$(runtime_extras)"
}

# Args: the extras to install, separated by commas.
install_extras() {
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
    announce_install "$extras"
    upgrade_pip
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
  local lock
  if [[ -n $CHECKPOINT ]]; then
    log "using $CHECKPOINT as it is; nothing is downloaded"
  elif [[ $MODEL == demo ]]; then
    run "$VENV/bin/cosydit" checkpoint unpack-demo "$(checkpoint_dir)"
  elif [[ $MODEL == random ]]; then
    if [[ -f $(checkpoint_dir)/README.md ]]; then
      log "$(checkpoint_dir) is there already"
    else
      run "$VENV/bin/cosydit" checkpoint make-random "$(checkpoint_dir)" --family "$FAMILY"
    fi
    log "random weights: everything works, and it speaks noise"
  else
    if [[ -z $OFFLINE ]]; then install_extras "$(runtime_extras),download"; fi
    lock=models.lock.json
    if [[ $FAMILY != step_audio2 ]]; then lock=models.$FAMILY.lock.json; fi
    local -a options=(--family "$FAMILY" --lock "$ROOT/deploy/$lock" --own-lock "$WORK_DIR/$lock")
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
  local reason setting dtype=float16 runner=auto
  if [[ $DEVICE != cuda ]]; then
    log "skipped: TensorRT engines for token2wav, which need a GPU"
    return
  fi
  if ! reason=$("$PYTHON" -m cosydit.stack.engines 2>&1); then
    log "skipped: TensorRT engines for token2wav ($reason)"
    return
  fi
  for setting in "${ASSEMBLER_SETTINGS[@]}"; do
    case $setting in
      dtype=*) dtype=${setting#dtype=} ;;
      runner=*) runner=${setting#runner=} ;;
    esac
  done
  if [[ $dtype != float16 && $dtype != float32 ]]; then
    log "skipped: TensorRT engines for token2wav (there are none of dtype=$dtype)"
    return
  fi
  run "$VENV/bin/cosydit" build-engines "$(checkpoint_dir)/token2wav" --precision "$dtype"
  if [[ $runner != auto && $runner != tensorrt ]]; then
    log "stage 3 will not use these engines: runner=$runner was given"
  fi
}

# The form of the LLM that keeps its head's bias; quick when it is there.
build_llm() {
  resolve_host
  if [[ $LLM_BACKEND == embedded ]]; then
    log "skipped: conversion of the LLM; the embedded LLM service reads $(checkpoint_dir)/llm as it is"
    return
  fi
  convert_llm
}

# The form that vLLM and trtllm-serve serve without loss; quick when it is there.
convert_llm() {
  run "$VENV/bin/cosydit" convert-llm huggingface "$(checkpoint_dir)/llm" "$WORK_DIR/llm_converted" --dtype bfloat16
}

# Has what llm_dir names.
ensure_llm_form() {
  if [[ $LLM_BACKEND != embedded ]]; then convert_llm; fi
}

# What the LLM service serves.
llm_dir() {
  if [[ $LLM_BACKEND == embedded ]]; then
    printf '%s\n' "$(checkpoint_dir)/llm"
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
    --tokenizer-dir "$(checkpoint_dir)/llm" --voices-dir "$(checkpoint_dir)/voices" --grpc-port "$GATEWAY_GRPC_PORT" \
    "${HOST_GATEWAY_OPTIONS[@]}"
  wait_ready gateway "$GATEWAY_PORT" /readyz
  log "LLM service http://127.0.0.1:$LLM_PORT"
  log "Triton      gRPC 127.0.0.1:$TRITON_GRPC_PORT, HTTP $TRITON_HTTP_PORT, metrics $TRITON_METRICS_PORT"
  log "gateway     http://127.0.0.1:$GATEWAY_PORT/v1/audio/speech, gRPC 127.0.0.1:$GATEWAY_GRPC_PORT"
}

stage_streaming_benchmark() {
  start_streaming_client "$TRITON_GRPC_PORT" "$LOG_DIR/streaming_grpc"
  wait_clients
}

# One request as the original's HTTP client sends it. Triton takes it where the drop-in answers with one whole waveform.
stage_http_client() {
  local voice transcript=
  voice=$(checkpoint_dir)/voices/default
  if is_decoupled; then
    log "skipped: a model that streams takes no plain HTTP; run stages 2 to 4 with DECOUPLED_MODE=False for it"
    return
  fi
  if [[ -f $voice.txt ]]; then transcript=$(<"$voice.txt"); fi
  run "$VENV/bin/cosydit" client triton-http --server-url "127.0.0.1:$TRITON_HTTP_PORT" --model-name "$(drop_in_model)" \
    --reference-audio "$voice.wav" --reference-text "$transcript" \
    --target-text "One request over plain HTTP, answered with a whole waveform." --output-audio "$LOG_DIR/http.wav"
}

stage_offline_batch() {
  offline_batch "${BATCH_SIZE:=$(default_batch_size)}" "${TOKEN2WAV_BATCH_SIZE:=$(default_batch_size)}" \
    "$LOG_DIR/offline_batch"
}

# The original's sizes one after another, where neither a CPU nor the caller asks for one.
stage_offline_batches() {
  local size
  if [[ -n $BATCH_SIZE || $DEVICE == cpu ]]; then
    stage_offline_batch
    return
  fi
  for size in 16 8 4 2 1; do offline_batch "$size" "${TOKEN2WAV_BATCH_SIZE:-1}" "$LOG_DIR/offline_batch_$size"; done
}

# Brings its own LLM service; those of stage 3 are stopped. Args: texts in the LLM at once, streams in one token2wav step
# (either may be empty: by the GPU's memory), folder of the results.
offline_batch() {
  local manifest=$MANIFEST
  local -a sizes=()
  stop_services
  resolve_host
  if [[ -n $1 ]]; then sizes+=(--batch-size "$1"); fi
  if [[ -n $2 ]]; then sizes+=(--token2wav-batch-size "$2"); fi
  if [[ -z $manifest ]]; then
    manifest=$LOG_DIR/samples.txt
    if [[ -z $DRY_RUN ]]; then write_sample_manifest "$manifest"; fi
  fi
  run "$PYTHON" -m benchmarks.offline_batch --manifest-path "$manifest" --output-dir "$3" \
    --backend "$LLM_BACKEND" --llm-model-name-or-path "$(checkpoint_dir)/llm" \
    --token2wav-path "$(checkpoint_dir)/token2wav" --device "$DEVICE" "${sizes[@]}"
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
    start_streaming_client $((DISAGGREGATED_GRPC_PORT + i)) "$directory"
  done
  wait_clients || status=$?
  run "$PYTHON" -m benchmarks.combine "${directories[@]}"
  return "$status"
}

verify_checkpoint() {
  local -a family=()
  if [[ -n $IS_VERIFIED ]]; then return; fi
  if [[ $FAMILY != step_audio2 ]]; then family=(--family "$FAMILY"); fi
  run "$VENV/bin/cosydit" checkpoint verify "$(checkpoint_dir)" "${family[@]}"
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
  if [[ $(repository_setting USE_SPK2INFO_CACHE) == true ]]; then
    import_spk2info
    settings+=("created_voices_dir=$WORK_DIR/spk2info-voices" "default_voice=$SPK2INFO_VOICE")
  fi
  if [[ $DEVICE == cpu && " ${ASSEMBLER_SETTINGS[*]}" != *" num_threads="* ]]; then
    settings+=("num_threads=$(token2wav_threads "${3:-1}")")
  fi
  run "$PYTHON" -m token2wav_service.serving.assemble --output "$1" "${settings[@]}" "${ASSEMBLER_SETTINGS[@]}"
}

# Prints a setting of the repository in small letters, empty where none was given. Args: name.
repository_setting() {
  local setting
  for setting in "${ASSEMBLER_SETTINGS[@]}"; do
    if [[ ${setting%%=*} == "$1" ]]; then setting=${setting#*=} && echo "${setting,,}"; fi
  done
}

is_decoupled() {
  [[ $(repository_setting DECOUPLED_MODE) != false ]]
}

# Has the voices of the checkpoint's spk2info.pt as files that the drop-in reads. Entries that can't be used are named.
import_spk2info() {
  local out=$WORK_DIR/spk2info-voices
  if [[ -z $DRY_RUN ]]; then
    rm -rf "$out"
    mkdir -p "$out"
  fi
  run "$VENV/bin/cosydit" import-voices "$(checkpoint_dir)/token2wav/spk2info.pt" --out "$out" \
    --model-dir "$(checkpoint_dir)/token2wav" --tokenizer-dir "$(checkpoint_dir)/llm" ||
    (($? == 1)) || fail "USE_SPK2INFO_CACHE=True needs the original's spk2info.pt in $(checkpoint_dir)/token2wav; see above"
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

# Where the gateway takes tokens: from our own engine over gRPC.
token_url() {
  if [[ $LLM_BACKEND == embedded ]]; then
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

# Starts a benchmark in the background. Args: gRPC port, folder of the results.
start_streaming_client() {
  local mode=streaming
  if ! is_decoupled; then mode=offline; fi
  local -a texts=(--voices-dir "$(checkpoint_dir)/voices")
  if [[ -n $MANIFEST ]]; then texts=(--manifest-path "$MANIFEST"); fi
  if [[ $(repository_setting USE_SPK2INFO_CACHE) == true ]]; then
    texts=(--use-spk2info-cache True)
    if [[ -n $MANIFEST ]]; then texts+=(--manifest-path "$MANIFEST"); fi
  fi
  start_client "$PYTHON" -m benchmarks.streaming_grpc --server-addr 127.0.0.1 --server-port "$1" \
    --model-name "$(drop_in_model)" --mode "$mode" --num-tasks "$NUM_TASKS" "${texts[@]}" --log-dir "$2"
}

# Prints what the drop-in is called for the checkpoint's family.
drop_in_model() {
  local family
  for family in cosyvoice2 cosyvoice3; do
    if [[ -f $(checkpoint_dir)/token2wav/$family.yaml || $FAMILY == "$family" ]]; then
      echo "$family"
      return
    fi
  done
  echo cosyvoice2_dit
}

# Other families' checkpoints lie apart from Step-Audio2's.
checkpoint_dir() {
  local apart=
  if [[ $FAMILY != step_audio2 ]]; then apart=$FAMILY-; fi
  if [[ -n $CHECKPOINT ]]; then
    echo "$CHECKPOINT"
  elif [[ $MODEL == demo ]]; then
    echo "$WORK_DIR/demo-voice"
  elif [[ $MODEL == random ]]; then
    echo "$WORK_DIR/${apart}random-checkpoint-0"
  else
    echo "$WORK_DIR/${apart}official-checkpoint"
  fi
}
