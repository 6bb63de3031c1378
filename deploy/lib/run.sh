# shellcheck shell=bash disable=SC2034,SC2153
# What every run script is: its settings, its verbs, and its stages one after another. Sourced by a script that has set
# ROOT, SCRIPT, FAMILY, PORTS, MODELS, VERBS and STAGES, and calls main (hence SC2034 and SC2153).
#
# PORTS are those of the LLM service and of Triton: HTTP, gRPC, metrics. MODELS is what stage 0 can provide, the default
# with a GPU last and without one first. STAGES is the script's table: "NUMBER FUNCTION TITLE" from -1 on. Logic lives in Python: a stage is a few commands.

readonly VENV=$ROOT/.venv
readonly PYTHON=$VENV/bin/python
readonly TORCH=torch==2.13.0
readonly CPU_TORCH=torch==2.13.0+cpu
readonly CPU_TORCH_INDEX=https://download.pytorch.org/whl/cpu
readonly FIRST_STAGE=-1
readonly LAST_STAGE=$((${#STAGES[@]} - 2))
readonly STOP_TIMEOUT_S=40
# The entry of spk2info.pt that the original speaks in where a request brings no voice.
readonly SPK2INFO_VOICE=001

# Settings: environment first, flags override (see usage).
WORK_DIR=${COSYDIT_HOME:-$HOME/.cache/cosydit}
CHECKPOINT=${COSYDIT_CHECKPOINT:-}
MODEL=${COSYDIT_MODEL:-}
DEVICE=${COSYDIT_DEVICE:-auto}
OFFLINE=${COSYDIT_OFFLINE:-}
LOG_DIR=${COSYDIT_LOG_DIR:-}
MANIFEST=${COSYDIT_MANIFEST:-}
LLM_BACKEND=${LLM_BACKEND:-}
LLM_PORT=${LLM_PORT:-${PORTS[0]}}
LLM_GRPC_PORT=${LLM_GRPC_PORT:-8100}
TRITON_HTTP_PORT=${TRITON_HTTP_PORT:-${PORTS[1]}}
TRITON_GRPC_PORT=${TRITON_GRPC_PORT:-${PORTS[2]}}
TRITON_METRICS_PORT=${TRITON_METRICS_PORT:-${PORTS[3]}}
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
for name in BLS_INSTANCE_NUM TRITON_MAX_BATCH_SIZE MAX_QUEUE_DELAY_MICROSECONDS DECOUPLED_MODE USE_SPK2INFO_CACHE \
  ORIGINAL_MODELS; do
  if [[ -n ${!name:-} ]]; then ASSEMBLER_SETTINGS+=("$name=${!name}"); fi
done
unset name

IS_VERIFIED=
# What resolve_host found for this host's GPU; empty on a CPU.
HOST_KEY=
HOST_SETTINGS=()
HOST_LLM_OPTIONS=()
HOST_GATEWAY_OPTIONS=()
HOST_WANTS_MPS=

# shellcheck source-path=SCRIPTDIR
source "$ROOT/deploy/lib/options.sh"
source "$ROOT/deploy/lib/environment.sh"
source "$ROOT/deploy/lib/services.sh"
source "$ROOT/deploy/lib/host.sh"
source "$ROOT/deploy/lib/stages.sh"

main() {
  local verb=${1:-}
  clear_python_path
  if [[ -n $verb && " ${VERBS[*]} " == *" $verb "* ]]; then
    shift
    resolve_device
    "verb_$verb" "$@"
  else
    parse_options "$@"
    check_settings
    run_stages
  fi
}

verb_say() {
  if (($# == 0)); then fail_usage "say needs a TEXT"; fi
  stage_environment
  exec "$VENV/bin/cosydit" say "$@"
}

# Everything that checks and tests need.
verb_install() {
  install_extras "$(runtime_extras),test,docs"
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
  # Tests start hundreds of processes. Each would compile the project's files anew where Python may not keep them compiled.
  unset PYTHONDONTWRITEBYTECODE
  start_type_check
  start_compiling_tests
  check_all_but_types
  wait "$COMPILE_PID" || true
  log "tests"
  "$PYTHON" -m pytest --durations=30 --durations-min=1 "$@" || status=$?
  finish_type_check
  exit "$status"
}

# Has Python compile what the tests import, once: all workers begin at the same moment, and each would compile it. Sets
# COMPILE_PID; errors are left to the tests.
start_compiling_tests() {
  "$PYTHON" -m pytest -n 0 --collect-only -qq >/dev/null 2>&1 &
  COMPILE_PID=$!
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
  trap 'kill "$TYPE_CHECK_PID" ${COMPILE_PID:-} 2>/dev/null || true; rm -f "$TYPE_CHECK_LOG"' EXIT
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
    "$(stage_function "$stage")"
  done
  case $(stage_function "$STOP") in
    stage_serve | stage_disaggregated) stay_until_stopped ;;
  esac
}

# Args: number of a stage.
stage_function() {
  local _ function
  read -r _ function _ <<<"${STAGES[$1 - FIRST_STAGE]}"
  echo "$function"
}

stage_title() {
  local _ title
  read -r _ _ title <<<"${STAGES[$1 - FIRST_STAGE]}"
  echo "$title"
}

log() {
  printf '[%s] %s\n' "$(date +%H:%M:%S)" "$*" >&2
}

fail() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

fail_usage() {
  usage >&2
  printf '\nerror: %s\n' "$*" >&2
  exit 2
}

