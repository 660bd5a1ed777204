#!/usr/bin/env bash
# Measure throughput and latency of beam search on the CPU and on 1, 2, 4, ... GPUs, in each precision that they have.
#
#   bash scripts/run_inference_benchmark.sh <PRED_BS> <EVAL_BEAMS> <MAX_SOURCE_LEN> <MAX_TARGET_LEN> <MODEL> <DATA_DIR>
#       <CONFIG_PATH> [--any_option_of_run_eval.py ...]
#
# Values may be left off from the right; the defaults are 128 6 1024 60 facebook/bart-large data/xsum configs/config_xsum.json.
# The environment may set GPU_COUNTS (such as "0 1 8"; 0 is the CPU), PRECISIONS ("fp32 bf16"), BATCHES, TIME_LIMIT and
# RESULTS_DIR; python scripts/benchmarks/throughput.py inference --help explains them.
set -euo pipefail
source "$(dirname "$0")/arguments.sh"

find_python
exec python "$root/scripts/benchmarks/throughput.py" inference "$@"
