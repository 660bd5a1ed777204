#!/usr/bin/env bash
# Run a command in the image bart_pyt, with the current directory mounted over /workspace/bart.
#
#   bash scripts/docker/launch.sh [COMMAND] [GPUS]
#
# COMMAND is one shell command line (default: an interactive bash). GPUS is `all` (default), numbers such as 0,1, or
# `none`, which takes the image bart_pyt:cpu and no GPU.
set -euo pipefail
source "$(dirname "$0")/../arguments.sh"

read_arguments COMMAND=bash GPUS=all -- "$@"
if ((${#options[@]})); then
    fail "${options[0]} is no argument; COMMAND is one word, such as 'bash scripts/serve.sh MODEL --port 80'"
fi

image=bart_pyt
# shellcheck disable=SC2153 # read_arguments sets it
case $GPUS in
none)
    image=bart_pyt:cpu
    gpus=()
    ;;
all) gpus=(--gpus all) ;;
*[!0-9,]*) fail "GPUS is '$GPUS'; allowed: all, none, or numbers such as 0,1" ;;
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
