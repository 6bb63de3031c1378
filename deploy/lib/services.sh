# shellcheck shell=bash
# Background processes of the run script: services, which are waited for and stopped, and clients, which end by
# themselves. Sourced; needs DRY_RUN, LOG_DIR, PYTHON, READY_TIMEOUT_S, STOP_TIMEOUT_S, log and fail. Knows no stage.

SERVICE_PIDS=()
SERVICE_NAMES=()
CLIENT_PIDS=()

# Fails if something answers there already: it would be taken for the service that is about to start. Args: ports...
require_free_ports() {
  local port
  if [[ -n $DRY_RUN ]]; then return; fi
  for port in "$@"; do
    if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
      fail "port $port is in use; stop what listens there, or choose another (see --help)"
    fi
  done
}

# Starts a service in a process group of its own. Args: name, command...
start_service() {
  local name=$1
  shift
  if [[ -n $DRY_RUN ]]; then
    run "$@"
    return
  fi
  mkdir -p "$LOG_DIR"
  log "starting $name; its log is $LOG_DIR/$name.log"
  setsid "$@" >"$LOG_DIR/$name.log" 2>&1 </dev/null &
  SERVICE_PIDS+=("$!")
  SERVICE_NAMES+=("$name")
}

# Waits until a service started here answers 200. Args: name, port, path.
wait_ready() {
  if [[ -n $DRY_RUN ]]; then return; fi
  local deadline=$((SECONDS + READY_TIMEOUT_S))
  until answers "http://127.0.0.1:$2$3"; do
    require_services
    if ((SECONDS >= deadline)); then
      tail -n 25 "$LOG_DIR/$1.log" >&2
      fail "$1 is not ready after $READY_TIMEOUT_S s; the end of $LOG_DIR/$1.log is above"
    fi
    sleep 0.2
  done
  require_services
  log "$1 is ready"
}

answers() {
  "$PYTHON" -c 'import signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback
from cosydit.stack.process import answers_ok
sys.exit(not answers_ok(sys.argv[1]))' "$1"
}

# Fails if a service started here has ended.
require_services() {
  local i
  for i in "${!SERVICE_PIDS[@]}"; do
    if ! kill -0 "${SERVICE_PIDS[i]}" 2>/dev/null; then
      tail -n 25 "$LOG_DIR/${SERVICE_NAMES[i]}.log" >&2
      fail "${SERVICE_NAMES[i]} has ended; the end of $LOG_DIR/${SERVICE_NAMES[i]}.log is above"
    fi
  done
}

stay_until_stopped() {
  if [[ -n $DRY_RUN ]]; then return; fi
  log "running until you stop this script (Ctrl-C)"
  while true; do
    require_services
    sleep 1
  done
}

# Stops every service started here, the last started first; kills what has not ended in time.
stop_services() {
  local i deadline=$((SECONDS + STOP_TIMEOUT_S))
  if ((${#SERVICE_PIDS[@]} == 0)); then return; fi
  log "stopping ${SERVICE_NAMES[*]}"
  for ((i = ${#SERVICE_PIDS[@]} - 1; i >= 0; i--)); do
    kill -TERM "${SERVICE_PIDS[i]}" 2>/dev/null || true
  done
  for i in "${!SERVICE_PIDS[@]}"; do
    while kill -0 "${SERVICE_PIDS[i]}" 2>/dev/null && ((SECONDS < deadline)); do sleep 0.2; done
    kill -KILL -- "-${SERVICE_PIDS[i]}" 2>/dev/null || true
  done
  SERVICE_PIDS=()
  SERVICE_NAMES=()
}

# Stops what this script started; runs when it exits.
stop_everything() {
  if ((${#CLIENT_PIDS[@]} > 0)); then kill -TERM "${CLIENT_PIDS[@]}" 2>/dev/null || true; fi
  stop_services
  stop_mps
}

# Starts a command that ends by itself; with --dry-run prints it.
start_client() {
  if [[ -n $DRY_RUN ]]; then
    printf '+'
    printf ' %q' "$@"
    printf '\n'
  else
    "$@" &
    CLIENT_PIDS+=("$!")
  fi
}

# Waits for every client; fails if one failed. A signal ends the wait at once, which a command in front would not allow.
wait_clients() {
  local pid status=0
  for pid in "${CLIENT_PIDS[@]}"; do wait "$pid" || status=$?; done
  CLIENT_PIDS=()
  return "$status"
}

run() {
  start_client "$@"
  wait_clients
}
