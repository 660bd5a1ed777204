#!/usr/bin/env bash
# Score a checkpoint on a test split with beam search, and measure throughput and latency.
#
#   bash scripts/run_eval_summarization.sh <INIT_CKPT> <PRED_BS> <NUM_GPU> <PRECISION> <EVAL_BEAMS> <MAX_SOURCE_LEN>
#       <MAX_TARGET_LEN> <DATA_DIR> <CONFIG_PATH> [--any_option_of_run_eval.py ...]
#
# INIT_CKPT is a checkpoint file, an export, a run's directory or a Hub name. A preset of scripts/params/ supplies the
# other values: $(source scripts/params/xsum_params.sh && dgxa100_8gpu_fp16_eval). They may be left off from the right; the
# defaults are 128 8 fp16 4 1024 142 data/cnn_dm/ configs/config.json. NUM_GPU 0 is the CPU; several GPUs share the articles.
# The first argument that starts with "--" and everything after it go to run_eval.py (python run_eval.py --help), and win.
# The environment may set RESULTS_DIR (default results/bart_pyt_inference_<stamp>).
set -euo pipefail
source "$(dirname "$0")/task.sh"

read_arguments INIT_CKPT= EVAL_BS=128 NUM_GPU=8 PRECISION=fp16 EVAL_BEAMS=4 MAX_SOURCE_LEN=1024 MAX_TARGET_LEN=142 \
    DATA_DIR=data/cnn_dm/ CONFIG_PATH=configs/config.json -- "$@"
[[ $INIT_CKPT ]] || fail "0 positional values; a checkpoint and up to 8 more are expected"
read_precision PRECISION fp16 bf16 tf32 fp32 int8
RESULTS_DIR=${RESULTS_DIR:-results/bart_pyt_inference_$(date +%y%m%d_%H%M%S)}
echo "scoring $INIT_CKPT on $DATA_DIR: PRED_BS $EVAL_BS, NUM_GPU $NUM_GPU; results go to $RESULTS_DIR"
score "$INIT_CKPT" "$RESULTS_DIR" --eval_beams "$EVAL_BEAMS" --max_target_length "$MAX_TARGET_LEN" \
    --eval_max_gen_length "$MAX_TARGET_LEN" ${options[@]+"${options[@]}"}
