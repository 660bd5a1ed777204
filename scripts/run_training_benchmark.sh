#!/usr/bin/env bash
# Training throughput of the recipe on the CPU and on 1, 2, 4, ... GPUs, in each precision that they have.
#
#   bash scripts/run_training_benchmark.sh <BS> <MAX_SOURCE_LEN> <MAX_TARGET_LEN> <DATA_DIR>
#       [--any_option_of_finetune.py ...]
#
# Values may be left off from the right. Everything from the first argument that starts with "--" goes to finetune.py.
# Read from the environment: CONFIG_PATH (default configs/config_xsum.json); GPU_COUNTS, such as "0 1 8", where 0 is the
# CPU; PRECISIONS, such as "fp32 bf16"; STEPS (default 50) that are measured; TIME_LIMIT (default 1800), seconds a row;
# RESULTS_DIR (default results/bart_pyt_training_benchmark_<stamp>), which gets the table as training_benchmark.log,
# .json and .md, and each row's output.
set -euo pipefail

positional=()
while (($# > 0)) && [[ $1 != --* ]]; do
    positional+=("$1")
    shift
done
if ((${#positional[@]} > 4)); then
    echo "run_training_benchmark.sh: error: ${#positional[@]} positional values, at most 4 are known; options start with --" >&2
    exit 2
fi
BS=${positional[0]:-24}
MAX_SOURCE_LEN=${positional[1]:-1024}
MAX_TARGET_LEN=${positional[2]:-60}
DATA_DIR=${positional[3]:-data/xsum}

exec python -m utils.benchmark training "$BS" "$MAX_SOURCE_LEN" "$MAX_TARGET_LEN" "$DATA_DIR" \
    "${CONFIG_PATH:-configs/config_xsum.json}" \
    ${GPU_COUNTS:+--gpu_counts "$GPU_COUNTS"} \
    ${PRECISIONS:+--precisions "$PRECISIONS"} \
    ${STEPS:+--steps "$STEPS"} \
    ${TIME_LIMIT:+--time_limit "$TIME_LIMIT"} \
    ${RESULTS_DIR:+--output_dir "$RESULTS_DIR"} \
    -- "$@"
