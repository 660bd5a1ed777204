#!/usr/bin/env bash
# Build the image bart_pyt from Dockerfile, or with --cpu the image bart_pyt:cpu from Dockerfile.cpu.
#
#   bash scripts/docker/build.sh [--cpu] [OPTION of docker build ...]
#
# For example --build-arg FROM_IMAGE_NAME=nvcr.io/nvidia/pytorch:<tag>, or --pull=false for a base that is only on this
# machine.
set -euo pipefail
source "$(dirname "$0")/../arguments.sh"
cd "$root"

image=(--tag bart_pyt --file Dockerfile)
if [[ ${1:-} == --cpu ]]; then
    image=(--tag bart_pyt:cpu --file Dockerfile.cpu)
    shift
fi

type -P docker >/dev/null || fail "docker is not on PATH; https://docs.docker.com/engine/install tells how to install it"
exec docker build --pull "${image[@]}" "$@" .
