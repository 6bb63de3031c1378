# shellcheck shell=bash disable=SC2034
# The run scripts' command line: the manual, the flags and the checks of every setting. Sourced; sets the variables that
# run.sh declares and reads (hence SC2034).

usage() {
  local stage verb
  echo "usage: $SCRIPT [OPTIONS] START STOP     run the stages START..STOP"
  for verb in "${VERBS[@]}"; do echo "       $SCRIPT $(usage_of "$verb")"; done
  echo
  for stage in "${STAGES[@]}"; do
    read -r stage _ verb <<<"$stage"
    printf '  %2s %s\n' "$stage" "$verb"
  done
  options_usage
}

# Args: a verb.
usage_of() {
  case $1 in
    say) echo "say TEXT [OPTIONS]       stage -1, then speak TEXT (options of \`cosydit say\`)" ;;
    install) echo "install                  stage -1 with what checks and tests need" ;;
    check) echo "check                    the same, then lint, unused code, types, layers, docs" ;;
    test) echo "test [PYTEST OPTIONS]    the same, then all tests" ;;
  esac
}

options_usage() {
  cat <<USAGE

On a GPU the stages after 0 choose the settings of both services by its memory, print them, and start NVIDIA's MPS where it
is installed; --set and the options below win.

Services that a stage starts run until you stop the script when theirs is the last stage, else until the last stage ends.

  --checkpoint DIR           use this checkpoint: token2wav/, llm/, voices/        (COSYDIT_CHECKPOINT)
  --model NAME               what stage 0 provides                                 (COSYDIT_MODEL)
                             $(usage_models)
                             default ${MODELS[0]}; ${MODELS[-1]} with a GPU
  --offline                  stage 0 touches no network                            (COSYDIT_OFFLINE=1)
  --device auto|cpu|cuda     default auto: cuda where nvidia-smi works             (COSYDIT_DEVICE)
  --work-dir DIR             checkpoints, model repository, logs; ~/.cache/cosydit (COSYDIT_HOME)
  --log-dir DIR              logs and results of this run; default WORK-DIR/logs   (COSYDIT_LOG_DIR)
  --llm-backend NAME         auto, embedded, vllm or trtllm; default auto: with a  (LLM_BACKEND)
                             GPU trtllm where trtllm-serve works, else embedded
  --set NAME=VALUE           setting of the model repository, repeatable; these also by environment:
                             BLS_INSTANCE_NUM TRITON_MAX_BATCH_SIZE MAX_QUEUE_DELAY_MICROSECONDS DECOUPLED_MODE
                             USE_SPK2INFO_CACHE ORIGINAL_MODELS
  --llm-port N               $(usage_port "${PORTS[0]}")                                                 (LLM_PORT)
  --llm-grpc-port N          8100, the embedded LLM's tokens                       (LLM_GRPC_PORT)
  --triton-http-port N       $(usage_port "${PORTS[1]}")                                                 (TRITON_HTTP_PORT)
  --triton-grpc-port N       $(usage_port "${PORTS[2]}")                                                 (TRITON_GRPC_PORT)
  --triton-metrics-port N    $(usage_port "${PORTS[3]}")                                                 (TRITON_METRICS_PORT)
  --gateway-port N           8080                                                  (GATEWAY_PORT)
  --gateway-grpc-port N      50051                                                 (GATEWAY_GRPC_PORT)
USAGE
  usage_disaggregated
  cat <<USAGE
  --manifest FILE            benchmarks: lines of utt|prompt_text|prompt_wav|text; default bundled sentences
                             in the voice \`default\`                                (COSYDIT_MANIFEST)
  --num-tasks N              streaming benchmarks: concurrent callers, default 4   (NUM_TASKS)
  --batch-size N             offline batch: texts in the LLM at once; default 4,   (BATCH_SIZE)
                             on a GPU $(usage_batch_sizes)
  --token2wav-batch-size N   offline batch: streams in one token2wav step; default (TOKEN2WAV_BATCH_SIZE)
                             4, on a GPU by its memory
  --ready-timeout-s N        how long a service may take to start, default 600     (READY_TIMEOUT_S)
  --dry-run                  print the commands instead of running them
  COSYDIT_PYTHON             the Python to make .venv with (3.10, 3.11 or 3.12)
USAGE
}

usage_models() {
  local model
  local -a known=()
  for model in "${MODELS[@]}"; do
    case $model in
      demo) known+=("demo (the bundled voice)") ;;
      random) known+=("random (weights that speak noise)") ;;
      official) known+=("official (the download)") ;;
    esac
  done
  printf '%s' "${known[0]}"
  printf ', %s' "${known[@]:1}"
}

usage_batch_sizes() {
  if [[ ${STAGES[*]} == *stage_offline_batches* ]]; then echo "16, 8, 4, 2 and 1 in turn"; else echo "by its memory"; fi
}

usage_port() {
  printf '%-5s' "$1"
}

usage_disaggregated() {
  if [[ ${STAGES[*]} != *stage_disaggregated* ]]; then return; fi
  cat <<'USAGE'
  --token2wav-servers N      stage 7: how many, default 2; server i = 0..N-1 listens on    (TOKEN2WAV_SERVERS)
                             HTTP 17000+i, gRPC 18000+i, metrics 16000+i  (DISAGGREGATED_{HTTP,GRPC,METRICS}_PORT)
USAGE
}

parse_options() {
  START=
  STOP=
  while (($# > 0)); do
    case $1 in
      -h | --help)
        usage
        exit 0
        ;;
      --offline) OFFLINE=1 ;;
      --dry-run) DRY_RUN=1 ;;
      --*)
        if (($# < 2)); then fail_usage "$1 needs a value, or is unknown"; fi
        set_option "$1" "$2"
        shift
        ;;
      *) set_stage "$1" ;;
    esac
    shift
  done
}

set_option() {
  case $1 in
    --checkpoint) CHECKPOINT=$2 ;;
    --model) MODEL=$2 ;;
    --device) DEVICE=$2 ;;
    --work-dir) WORK_DIR=$2 ;;
    --log-dir) LOG_DIR=$2 ;;
    --manifest) MANIFEST=$2 ;;
    --llm-backend) LLM_BACKEND=$2 ;;
    --set) set_repository "$2" ;;
    --llm-port) LLM_PORT=$2 ;;
    --llm-grpc-port) LLM_GRPC_PORT=$2 ;;
    --triton-http-port) TRITON_HTTP_PORT=$2 ;;
    --triton-grpc-port) TRITON_GRPC_PORT=$2 ;;
    --triton-metrics-port) TRITON_METRICS_PORT=$2 ;;
    --gateway-port) GATEWAY_PORT=$2 ;;
    --gateway-grpc-port) GATEWAY_GRPC_PORT=$2 ;;
    --token2wav-servers) TOKEN2WAV_SERVERS=$2 ;;
    --num-tasks) NUM_TASKS=$2 ;;
    --batch-size) BATCH_SIZE=$2 ;;
    --token2wav-batch-size) TOKEN2WAV_BATCH_SIZE=$2 ;;
    --ready-timeout-s) READY_TIMEOUT_S=$2 ;;
    *) fail_usage "unknown option $1" ;;
  esac
}

# The last value given for a name counts. Args: NAME=VALUE.
set_repository() {
  local setting
  local -a kept=()
  for setting in "${ASSEMBLER_SETTINGS[@]}"; do
    if [[ ${setting%%=*} != "${1%%=*}" ]]; then kept+=("$setting"); fi
  done
  ASSEMBLER_SETTINGS=("${kept[@]}" "$1")
}

set_stage() {
  if [[ ! $1 =~ ^(-1|[0-9]+)$ ]] || (($1 < FIRST_STAGE || $1 > LAST_STAGE)); then
    fail_usage "got $1, expected a stage, $FIRST_STAGE to $LAST_STAGE"
  fi
  if [[ -z $START ]]; then
    START=$1
  elif [[ -z $STOP ]]; then
    STOP=$1
  else
    fail_usage "got a third stage, $1; expected START and STOP"
  fi
}

check_settings() {
  if [[ -z $START || -z $STOP ]]; then fail_usage "expected START and STOP"; fi
  if ((START > STOP)); then fail_usage "START $START is after STOP $STOP"; fi
  check_numbers
  resolve_device
  check_choice --model "${MODEL:=$([[ $DEVICE == cuda ]] && echo "${MODELS[-1]}" || echo "${MODELS[0]}")}" "${MODELS[@]}"
  check_choice --llm-backend "${LLM_BACKEND:=auto}" auto embedded vllm trtllm
  if [[ $LLM_BACKEND == auto && $DEVICE == cpu ]]; then LLM_BACKEND=embedded; fi
  WORK_DIR=$(realpath -m -- "$WORK_DIR")
  export COSYDIT_HOME=$WORK_DIR
  LOG_DIR=$(realpath -m -- "${LOG_DIR:-$WORK_DIR/logs}")
  if [[ -n $CHECKPOINT ]]; then CHECKPOINT=$(realpath -m -- "$CHECKPOINT"); fi
  if ((START > -1)) && [[ -z $DRY_RUN && ! -x $VENV/bin/cosydit ]]; then fail "there is no $VENV yet; run: bash $0 -1 $STOP"; fi
  if [[ -z $DRY_RUN && -n $CHECKPOINT && ! -d $CHECKPOINT ]]; then
    fail_usage "--checkpoint $CHECKPOINT is missing; name the folder of a checkpoint, which no stage makes"
  fi
  if ((START > 0)) && [[ -z $DRY_RUN && ! -d $(checkpoint_dir) ]]; then fail "$(checkpoint_dir) is missing; run: bash $0 0 $STOP"; fi
}

check_numbers() {
  local name
  for name in LLM_PORT LLM_GRPC_PORT TRITON_HTTP_PORT TRITON_GRPC_PORT TRITON_METRICS_PORT GATEWAY_PORT GATEWAY_GRPC_PORT \
    TOKEN2WAV_SERVERS NUM_TASKS BATCH_SIZE TOKEN2WAV_BATCH_SIZE READY_TIMEOUT_S \
    DISAGGREGATED_HTTP_PORT DISAGGREGATED_GRPC_PORT DISAGGREGATED_METRICS_PORT; do
    if [[ $name == *BATCH_SIZE && -z ${!name} ]]; then continue; fi
    if [[ ! ${!name} =~ ^[1-9][0-9]{0,4}$ ]]; then fail_usage "$name is '${!name}', expected a number from 1 to 99999"; fi
  done
}

# Args: option, its value, the values it may have...
check_choice() {
  local choice
  for choice in "${@:3}"; do
    if [[ $2 == "$choice" ]]; then return; fi
  done
  fail_usage "$1 is '$2', expected one of: ${*:3}"
}

resolve_device() {
  check_choice --device "$DEVICE" auto cpu cuda
  if [[ $DEVICE != auto ]]; then return; fi
  if command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; then DEVICE=cuda; else DEVICE=cpu; fi
}
