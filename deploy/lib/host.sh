# shellcheck shell=bash disable=SC2153,SC2034
# What this host's GPU changes for the run script: the LLM's backend, the settings of both services, and NVIDIA's MPS. The
# choice is made in Python. Sourced; needs DEVICE, DRY_RUN, PYTHON, WORK_DIR, LOG_DIR, LLM_BACKEND, ASSEMBLER_SETTINGS,
# HOST_*, checkpoint_dir, log and fail.

ASKED_LLM_BACKEND=
MPS_IS_OURS=

# Asks once for each set of arguments. Args: further options of cosydit.stack.host...
resolve_host() {
  local key=" $*" setting lines
  if [[ $DEVICE == cpu || $HOST_KEY == "$key" ]]; then return; fi
  HOST_KEY=$key
  ASKED_LLM_BACKEND=${ASKED_LLM_BACKEND:-$LLM_BACKEND}
  if [[ -n $DRY_RUN && ! -x $PYTHON ]]; then
    if [[ $LLM_BACKEND == auto ]]; then LLM_BACKEND=embedded; fi
    log "the settings for this host's GPU are chosen when the stages run"
    return
  fi
  local -a command=("$PYTHON" -m cosydit.stack.host --device "$DEVICE" --llm-backend "$ASKED_LLM_BACKEND")
  command+=(--checkpoint "$(checkpoint_dir)" --work-dir "$WORK_DIR" "$@")
  for setting in "${ASSEMBLER_SETTINGS[@]}"; do command+=(--set "$setting"); done
  lines=$("${command[@]}") || fail "this host's GPU can't be used; see above, or say --device cpu"
  read_host "$lines"
}

# Args: what cosydit.stack.host wrote.
read_host() {
  local name value
  HOST_SETTINGS=() HOST_LLM_OPTIONS=() HOST_GATEWAY_OPTIONS=() HOST_WANTS_MPS=
  while read -r name value; do
    case $name in
      llm_backend) LLM_BACKEND=$value ;;
      llm_option) HOST_LLM_OPTIONS+=("$value") ;;
      gateway_option) HOST_GATEWAY_OPTIONS+=("$value") ;;
      setting) if [[ $value != device=* ]]; then HOST_SETTINGS+=("$value"); fi ;;
      mps) HOST_WANTS_MPS=1 ;;
    esac
  done <<<"$1"
}

# Has several processes run on the GPU at once; a daemon that runs already is used and left alone.
start_mps() {
  local whose pipes
  if [[ -z $HOST_WANTS_MPS || -n $DRY_RUN || -n $MPS_IS_OURS ]]; then return; fi
  mkdir -p "$LOG_DIR"
  read -r whose pipes < <("$PYTHON" -m cosydit.stack.mps start --log-dir "$LOG_DIR") || return 0
  export CUDA_MPS_PIPE_DIRECTORY=$pipes
  if [[ $whose == ours ]]; then MPS_IS_OURS=1; fi
}

stop_mps() {
  if [[ -z $MPS_IS_OURS ]]; then return; fi
  "$PYTHON" -m cosydit.stack.mps stop || true
  MPS_IS_OURS=
}
