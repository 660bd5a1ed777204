#!/usr/bin/env bash
# Measure the training throughput of the recipe on the CPU and on 1, 2, 4, ... GPUs, in each precision that they have.
#
#   bash scripts/run_training_benchmark.sh <BS> <MAX_SOURCE_LEN> <MAX_TARGET_LEN> <DATA_DIR>
#       [--any_option_of_finetune.py ...]
#
# Values may be left off from the right; the defaults are 24 1024 60 data/xsum.
# The environment may set GPU_COUNTS (such as "0 1 8"; 0 is the CPU), PRECISIONS ("fp32 bf16"), STEPS, CONFIG_PATH, TIME_LIMIT
# and RESULTS_DIR; python scripts/benchmarks/throughput.py training --help explains them.
set -euo pipefail
source "$(dirname "$0")/arguments.sh"

find_python
exec python "$root/scripts/benchmarks/throughput.py" training "$@"
