#!/usr/bin/env bash
# Measure the pretraining throughput of the recipe on the CPU and on 1, 2, 4, ... GPUs, in each precision that they have.
#
#   bash scripts/run_pretraining_benchmark.sh <BATCH_SIZE> <LENGTH> <DATA_DIR> <CONFIG_PATH>
#       [--any_option_of_run_pretraining.py ...]
#
# Values may be left off from the right; the defaults are 200 128 data configs/config.json. The published batches are 200 in
# bf16 and 100 in tf32 at length 128, and 32 and 16 at 512. DATA_DIR holds pretrain_lddl_<LENGTH>; data/sample is made if it is
# missing. The environment may set GPU_COUNTS (such as "0 1 8"; 0 is the CPU), PRECISIONS ("fp32 bf16"), STEPS, TIME_LIMIT and
# RESULTS_DIR; python scripts/benchmarks/throughput.py pretraining --help explains them.
set -euo pipefail
source "$(dirname "$0")/arguments.sh"

find_python
exec python "$root/scripts/benchmarks/throughput.py" pretraining "$@"
