#!/usr/bin/env bash
# Build the image bart_pyt from the Dockerfile. Arguments go to `docker build`, for example
# --build-arg FROM_IMAGE_NAME=nvcr.io/nvidia/pytorch:<tag>.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

docker build --pull --tag bart_pyt "$@" .
