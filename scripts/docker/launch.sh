#!/usr/bin/env bash
# Run a command in the image bart_pyt, with the current directory mounted over /workspace/bart.
#
#   bash scripts/docker/launch.sh [COMMAND] [GPUS]
#
# COMMAND is one shell command line (default: an interactive bash); GPUS is `all` (default), or numbers such as 0,1.
set -euo pipefail

COMMAND=${1:-bash}
GPUS=${2:-all}

# docker reads --gpus as comma-separated fields, so a list of devices is quoted for it once more.
if [[ $GPUS != all ]]; then
    GPUS="\"device=$GPUS\""
fi
interactive=--interactive
if [[ -t 0 && -t 1 ]]; then
    interactive=-it
fi

# Loader processes and NCCL share memory: --ipc=host, no limit on locked pages.
exec docker run --rm "$interactive" \
    --gpus "$GPUS" \
    --ipc=host --ulimit memlock=-1 --ulimit stack=67108864 \
    --volume "$PWD:/workspace/bart" --workdir /workspace/bart \
    bart_pyt bash -c "$COMMAND"
