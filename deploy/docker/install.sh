#!/usr/bin/env bash
# What the images install, so that the same commands can be tried without Docker. Run from the root of the sources.
#
#   install.sh packages NAME DIR [COMPUTE]   a virtual environment in DIR with what locks/NAME.txt lists, and torch for
#                                            COMPUTE: cuda (locks/cuda.txt) or cpu
#   install.sh project DIR                   the project into that environment
#   install.sh slim DIR                      takes out what a gateway never opens; needs a C compiler and strip
#   install.sh folder DIR                    the project alone in DIR, for a Python that has what it needs (vLLM's,
#                                            TensorRT-LLM's)
#
# Every package comes by exact version and hash. torch's CPU build is the exception: its index is $TORCH_INDEX, and its
# version is exact.
set -euo pipefail
# A base's own packages must not stand before those that are installed here.
unset PYTHONPATH

readonly LOCKS=deploy/docker/locks
readonly TORCH=torch==2.13.0+cpu
readonly TORCH_INDEX=${TORCH_INDEX:-https://download.pytorch.org/whl/cpu}
readonly PIP=(-m pip --disable-pip-version-check --no-cache-dir --quiet)
readonly UNUSED_PACKAGES=(
  huggingface-hub hf-xet fsspec filelock httpx2 httpcore2 truststore  # tokenizers asks for them, and downloads with them
  rich markdown-it-py mdurl pygments setuptools pip
)
# Libraries of FFmpeg that encode or decode pictures, fetch by TLS, and record from a sound card.
readonly UNUSED_LIBRARIES=(libx264 libx265 libSvtAv1Enc libvpx libvpl libwebp libdav1d libgnutls libasound)
readonly NEEDED_BY_UNUSED=(libunistring libnettle libhogweed libgmp)

install_packages() {
  local name=$1 python=$2/bin/python compute=${3:-}
  python3 -m venv "$2"
  "$python" "${PIP[@]}" install --require-hashes -r "$LOCKS/build.txt"
  "$python" "${PIP[@]}" install --no-build-isolation --no-deps --require-hashes -r "$LOCKS/$name.txt"
  case $compute in
    cuda) "$python" "${PIP[@]}" install --no-deps --require-hashes -r "$LOCKS/cuda.txt" ;;
    cpu) "$python" "${PIP[@]}" install --no-deps --index-url "$TORCH_INDEX" "$TORCH" ;;
  esac
}

install_project() {
  "$1/bin/python" "${PIP[@]}" install --no-build-isolation --no-deps .
  "$1/bin/python" "${PIP[@]}" check
}

install_folder() {
  local tools
  tools=$(mktemp -d)
  python3 -m venv "$tools"
  "$tools/bin/python" "${PIP[@]}" install --require-hashes -r "$LOCKS/build.txt"
  "$tools/bin/python" "${PIP[@]}" install --no-build-isolation --no-deps --target "$1" .
  rm -rf "$tools"
}

slim() {
  local packages library
  packages=$("$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  "$1/bin/python" "${PIP[@]}" uninstall --yes "${UNUSED_PACKAGES[@]}"
  rm -rf "$packages"/demo_voice/{weights,voices,samples} "$packages"/numpy/{array_api,distutils,f2py,testing} \
    "$packages"/{benchmarks,numpy/core/_simd.*}
  find "$packages" -type d \( -name tests -o -name __pycache__ \) -prune -exec rm -rf {} +
  find "$packages" -type f \( -name '*.pyi' -o -name '*.p[yx][xd]' -o -name '*.[ha]' -o -name '*.proto' \) -delete
  for library in "${UNUSED_LIBRARIES[@]}"; do put_stand_in "$packages/av.libs" "$library"; done
  for library in "${NEEDED_BY_UNUSED[@]}"; do rm "$packages/av.libs/$library"-*; done
  slim_grammars "$packages/wetext/fsts"
  # NOTE: not the libraries that a wheel brings in a folder of its own: strip breaks what auditwheel renamed there.
  find "$packages" -name '*.so*' -type f ! -path '*.libs/*' -exec strip --strip-unneeded {} +
}

# Puts a library with the same functions and versions in a library's place, for FFmpeg asks for all of them when it is
# loaded. Each returns 0: no encoder, no connection, no sound card.
put_stand_in() {
  local library source=$1/stand-in
  library=$(find "$1" -name "$2-*")
  find "$1" "$1/../av" -name '*.so*' ! -path "$library" -exec nm --dynamic --undefined-only --format=just-symbols {} + |
    sort -u |
    awk -F@ -v code="$source.c" -v versions="$source.map" '
      NR == FNR { defined[$1]; next }
      $1 in defined && !seen[$1]++ { print "void *" $1 "(void) { return 0; }" > code; of[$2] = of[$2] $1 "; " }
      END { for (each in of) print each, "{ global: " of[each] "};" > versions }
    ' <(nm --dynamic --defined-only --format=just-symbols "$library") -
  cc -shared -fPIC -Wl,-soname,"${library##*/}" -Wl,--version-script,"$source.map" -o "$library" "$source.c"
  rm "$source".*
}

# Of its grammars WeText opens none named prefix, and loads those that make digits of words, and the Chinese ones,
# which nobody asks here: each of these becomes a link to its smallest.
slim_grammars() {
  local grammar
  find "$1" -name 'prefix*.fst' -delete
  for grammar in "$1"/*/itn/*.fst "$1"/zh/tn/*.fst; do ln -sf "$1/remove_puncts.fst" "$grammar"; done
}

case ${1:-} in
  packages) install_packages "${@:2}" ;;
  project) install_project "$2" ;;
  slim) slim "$2" ;;
  folder) install_folder "$2" ;;
  *)
    sed -n '/^#  /s/^# //p' "$0" >&2
    exit 2
    ;;
esac
