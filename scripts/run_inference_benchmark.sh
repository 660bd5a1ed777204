#!/usr/bin/env bash
# Throughput and latency of beam search on the CPU and on 1, 2, 4, ... GPUs, in each precision that they have.
#
#   bash scripts/run_inference_benchmark.sh <PRED_BS> <EVAL_BEAMS> <MAX_SOURCE_LEN> <MAX_TARGET_LEN> <MODEL> <DATA_DIR>
#       <CONFIG_PATH> [--any_option_of_run_eval.py ...]
#
# MODEL is a checkpoint file, an exported directory or a Hub name. Values may be left off from the right. Everything from
# the first argument that starts with "--" goes to run_eval.py.
# Read from the environment: GPU_COUNTS, such as "0 1 8", where 0 is the CPU; PRECISIONS, such as "fp32 int8"; BATCHES
# (default 8) that are measured; TIME_LIMIT (default 1800), seconds a row; RESULTS_DIR (default
# results/bart_pyt_inference_benchmark_<stamp>), which gets the table as inference_benchmark.log, .json and .md, and each
# row's output.
set -euo pipefail

positional=()
while (($# > 0)) && [[ $1 != --* ]]; do
    positional+=("$1")
    shift
done
if ((${#positional[@]} > 7)); then
    echo "run_inference_benchmark.sh: error: ${#positional[@]} positional values, at most 7 are known; options start with --" >&2
    exit 2
fi
PRED_BS=${positional[0]:-128}
EVAL_BEAMS=${positional[1]:-6}
MAX_SOURCE_LEN=${positional[2]:-1024}
MAX_TARGET_LEN=${positional[3]:-60}
MODEL=${positional[4]:-facebook/bart-large}
DATA_DIR=${positional[5]:-data/xsum}
CONFIG_PATH=${positional[6]:-configs/config_xsum.json}

exec python -m utils.benchmark inference "$PRED_BS" "$MAX_SOURCE_LEN" "$MAX_TARGET_LEN" "$DATA_DIR" "$CONFIG_PATH" \
    --model "$MODEL" \
    --eval_beams "$EVAL_BEAMS" \
    ${GPU_COUNTS:+--gpu_counts "$GPU_COUNTS"} \
    ${PRECISIONS:+--precisions "$PRECISIONS"} \
    ${BATCHES:+--batches "$BATCHES"} \
    ${TIME_LIMIT:+--time_limit "$TIME_LIMIT"} \
    ${RESULTS_DIR:+--output_dir "$RESULTS_DIR"} \
    -- "$@"
