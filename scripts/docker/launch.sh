#!/usr/bin/env bash
# Run a command in the image bart_pyt, with the current directory mounted over /workspace/bart.
#
#   bash scripts/docker/launch.sh [COMMAND] [GPUS]
#
# COMMAND is one shell command line, or the path of a script (default: an interactive bash). GPUS is `all` (default),
# numbers such as 0,1, or `none`, which takes the image bart_pyt:cpu and no GPU. The command runs as the calling user, in
# the host's network, so a service that listens at 127.0.0.1 is reached from the host. Downloads of the Hub go to the
# caller's HF_HOME.
#
# `docker stop` lets the command save for up to STOP_SECONDS (default: 120). Scripts of this repository pass the signal on; a
# script of your own does if it ends in `exec bash scripts/...`.
set -euo pipefail
given_words=("$@")
source "$(dirname "$0")/../arguments.sh"
set -- ${given_words[@]+"${given_words[@]}"} # COMMAND is no path of this machine

read_arguments COMMAND=bash GPUS=all -- "$@"
if ((${#options[@]})); then
    fail "${options[0]} is no argument; COMMAND is one word, such as 'bash scripts/serve.sh MODEL --port 8000'"
fi

[[ $COMMAND != *.sh || $COMMAND == *\ * ]] || COMMAND="bash $COMMAND"

image=bart_pyt
# NCCL wants no limit on locked pages.
limits=(--ulimit memlock=-1 --ulimit stack=67108864)
# shellcheck disable=SC2153 # read_arguments sets it
case $GPUS in
none)
    image=bart_pyt:cpu
    gpus=() limits=()
    ;;
all) gpus=(--gpus all) ;;
*[!0-9,]*) fail "GPUS is '$GPUS'; allowed: all, none, or numbers such as 0,1" ;;
*) gpus=(--gpus "\"device=$GPUS\"") ;; # docker reads comma-separated fields, so a list is quoted for it once more
esac
interactive=--interactive
if [[ -t 0 && -t 1 ]]; then
    interactive=-it
fi

type -P docker >/dev/null || fail "docker is not on PATH; https://docs.docker.com/engine/install tells how to install it"
# Files belong to the caller. In a rootless engine the container's root is the caller.
user=(--user "$(id -u):$(id -g)")
[[ $(docker info --format '{{.SecurityOptions}}' 2>/dev/null) != *rootless* ]] || user=()
hub=${HF_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/huggingface}
mkdir -p "$hub"

# Loader processes and NCCL share memory: --ipc=host.
exec docker run --rm "$interactive" \
    ${gpus[@]+"${gpus[@]}"} ${limits[@]+"${limits[@]}"} ${user[@]+"${user[@]}"} \
    --env HOME=/tmp --env "USER=$(id -un)" \
    --volume "$(cd "$hub" && pwd):/huggingface" --env HF_HOME=/huggingface \
    --ipc=host --network=host --stop-timeout "${STOP_SECONDS:-120}" \
    --volume "$PWD:/workspace/bart" --workdir /workspace/bart \
    "$image" bash -c "$COMMAND"
