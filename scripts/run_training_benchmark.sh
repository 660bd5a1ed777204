#!/usr/bin/env bash
# Training throughput of the recipe on the CPU and on 1, 2, 4, ... GPUs, in each precision that they have.
#
#   bash scripts/run_training_benchmark.sh <BS> <MAX_SOURCE_LEN> <MAX_TARGET_LEN> <DATA_DIR>
#       [--any_option_of_finetune.py ...]
#
# Values may be left off from the right; --help shows their defaults, and what is read from the environment.
exec python -m utils.benchmark training "$@"
