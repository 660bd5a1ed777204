#!/usr/bin/env bash
# Run a command in the image bart_pyt, with the current directory mounted over /workspace/bart.
#
#   bash scripts/docker/launch.sh [COMMAND] [GPUS]
#
# COMMAND is one shell command line (default: an interactive bash). GPUS is `all` (default), numbers such as 0,1, or
# `none` for the image bart_pyt:cpu without any.
set -euo pipefail

COMMAND=${1:-bash}
GPUS=${2:-all}

image=bart_pyt
case $GPUS in
none)
    image=bart_pyt:cpu
    gpus=()
    ;;
all) gpus=(--gpus all) ;;
*) gpus=(--gpus "\"device=$GPUS\"") ;; # docker reads comma-separated fields, so a list is quoted for it once more
esac
interactive=--interactive
if [[ -t 0 && -t 1 ]]; then
    interactive=-it
fi

# Loader processes and NCCL share memory: --ipc=host, no limit on locked pages.
exec docker run --rm "$interactive" \
    ${gpus[@]+"${gpus[@]}"} \
    --ipc=host --ulimit memlock=-1 --ulimit stack=67108864 \
    --volume "$PWD:/workspace/bart" --workdir /workspace/bart \
    "$image" bash -c "$COMMAND"
