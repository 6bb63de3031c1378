#!/usr/bin/env bash
# Builds our images with Docker, or with buildah where no Docker answers or BUILDER=buildah asks for it. Run from the root
# of the sources:
#
#   deploy/docker/images.sh [IMAGE...]   gateway, engines (for GPUs), engines-cpu (its half without CUDA) and cpu;
#                                        without a name gateway and engines
#
# BASE is what they are built on, debian:bookworm-slim unless given; debian@sha256:... pins it. Where buildah can reach no
# registry, a stand-in takes its place: Debian 12 as debootstrap installs it, without its documentation. The images say so
# in their label cosydit.base. A buildah without root's storage driver: STORAGE_DRIVER=vfs. More options for each
# build: BUILD_OPTIONS.
set -euo pipefail

readonly TAG=${COSYDIT_TAG:-0.2.0}
readonly REGISTRY_BASE=debian:bookworm-slim
readonly STAND_IN=localhost/cosydit/stand-in:bookworm
BASE=${BASE:-}

has_docker() { [[ ${BUILDER:-docker} == docker ]] && docker info >/dev/null 2>&1; }

choose_base() {
  if [[ -n $BASE ]]; then return; fi
  BASE=$REGISTRY_BASE
  if has_docker || buildah pull --quiet "docker.io/library/$REGISTRY_BASE" >/dev/null 2>&1; then return; fi
  echo "no registry answers: building on a stand-in of $REGISTRY_BASE, made by debootstrap" >&2
  BASE=$STAND_IN
  buildah inspect --type image "$STAND_IN" >/dev/null 2>&1 || make_stand_in
}

make_stand_in() {
  local root container
  root=$(mktemp -d)
  debootstrap --variant=minbase bookworm "$root" http://deb.debian.org/debian >&2
  rm -rf "$root"/usr/share/{doc,man,locale,info,lintian} "$root"/var/{cache,log}/* "$root"/var/lib/apt/lists/*
  # As in the image that it stands in for, packages come without their documentation.
  printf 'path-exclude /usr/share/%s/*\n' doc man locale info >"$root/etc/dpkg/dpkg.cfg.d/docker"
  container=$(buildah from scratch)
  buildah add --quiet "$container" "$root" / >&2
  buildah commit --quiet --rm "$container" "$STAND_IN" >&2
  rm -rf "$root"
}

# Args: image's name.
build() {
  local -a given=(--build-arg "BASE=$BASE" --label "cosydit.base=$BASE" -t "cosydit/$1:$TAG")
  case $1 in
    gateway) given+=(-f deploy/docker/gateway.Dockerfile) ;;
    engines) given+=(-f deploy/docker/engines.Dockerfile) ;;
    engines-cpu) given+=(-f deploy/docker/engines.Dockerfile --build-arg COMPUTE=cpu) ;;
    cpu) given+=(-f deploy/docker/engines.Dockerfile --build-arg COMPUTE=cpu --build-arg NAME=cpu) ;;
  esac
  # shellcheck disable=SC2206 # several options, by blanks
  given+=(${BUILD_OPTIONS:-})
  if has_docker; then
    docker build "${given[@]}" .
  else
    buildah build --layers --format docker --isolation chroot --network host --pull=never "${given[@]}" .
  fi
}

if [[ $# == 0 ]]; then set -- gateway engines; fi
for image in "$@"; do
  if [[ ! $image =~ ^(gateway|engines|engines-cpu|cpu)$ ]]; then
    echo "error: got image $image, expected gateway, engines, engines-cpu or cpu" >&2
    exit 2
  fi
done
choose_base
for image in "$@"; do build "$image"; done
