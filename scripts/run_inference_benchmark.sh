#!/usr/bin/env bash
# Throughput and latency of beam search on the CPU and on 1, 2, 4, ... GPUs, in each precision that they have.
#
#   bash scripts/run_inference_benchmark.sh <PRED_BS> <EVAL_BEAMS> <MAX_SOURCE_LEN> <MAX_TARGET_LEN> <MODEL> <DATA_DIR>
#       <CONFIG_PATH> [--any_option_of_run_eval.py ...]
#
# Values may be left off from the right; --help shows their defaults, and what is read from the environment.
exec python -m utils.benchmark inference "$@"
