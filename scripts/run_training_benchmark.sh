#!/usr/bin/env bash
# Training throughput of the recipe on the CPU and on 1, 2, 4, ... GPUs, in each precision that they have.
#
#   bash scripts/run_training_benchmark.sh <BS> <MAX_SOURCE_LEN> <MAX_TARGET_LEN> <DATA_DIR>
#       [--any_option_of_finetune.py ...]
#
# Values may be left off from the right; --help shows their defaults. Everything from the first argument that starts with
# "--" goes to finetune.py. Read from the environment: CONFIG_PATH, GPU_COUNTS (such as "0 1 8", where 0 is the CPU),
# PRECISIONS (such as "fp32 bf16"), STEPS, TIME_LIMIT (seconds a row) and RESULTS_DIR, which gets the table as
# training_benchmark.log, .json and .md, and each row's output.
exec python -m utils.benchmark training "$@"
