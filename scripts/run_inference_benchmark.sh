#!/usr/bin/env bash
# Throughput and latency of beam search on the CPU and on 1, 2, 4, ... GPUs, in each precision that they have.
#
#   bash scripts/run_inference_benchmark.sh <PRED_BS> <EVAL_BEAMS> <MAX_SOURCE_LEN> <MAX_TARGET_LEN> <MODEL> <DATA_DIR>
#       <CONFIG_PATH> [--any_option_of_run_eval.py ...]
#
# MODEL is a checkpoint file, an exported directory or a Hub name. Values may be left off from the right; --help shows
# their defaults. Everything from the first argument that starts with "--" goes to run_eval.py. Read from the environment:
# GPU_COUNTS (such as "0 1 8", where 0 is the CPU), PRECISIONS (such as "fp32 int8"), BATCHES, TIME_LIMIT (seconds a row)
# and RESULTS_DIR, which gets the table as inference_benchmark.log, .json and .md, and each row's output.
exec python -m utils.benchmark inference "$@"
