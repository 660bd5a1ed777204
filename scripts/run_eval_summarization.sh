#!/usr/bin/env bash
# Score a checkpoint on a test split with beam search: ROUGE, throughput, latency.
#
#   bash scripts/run_eval_summarization.sh <INIT_CKPT> <PRED_BS> <NUM_GPU> <PRECISION> <EVAL_BEAMS> <MAX_SOURCE_LEN>
#       <MAX_TARGET_LEN> <DATA_DIR> <CONFIG_PATH> [--any_option_of_run_eval.py ...]
#
# INIT_CKPT is a checkpoint file, an exported directory or a Hub name. Values may be left off from the right.
# Everything from the first argument that starts with "--" goes to run_eval.py.
# RESULTS_DIR (default results/bart_pyt_inference_<stamp>) is read from the environment.
set -euo pipefail

positional=()
while (($# > 0)) && [[ $1 != --* ]]; do
    positional+=("$1")
    shift
done
if ((${#positional[@]} < 1 || ${#positional[@]} > 9)); then
    echo "run_eval_summarization.sh: error: ${#positional[@]} positional values; a checkpoint and up to 8 more are expected" >&2
    exit 2
fi
INIT_CKPT=${positional[0]}
PRED_BS=${positional[1]:-128}
NUM_GPU=${positional[2]:-8}
PRECISION=${positional[3]:-fp16}
EVAL_BEAMS=${positional[4]:-4}
MAX_SOURCE_LEN=${positional[5]:-1024}
MAX_TARGET_LEN=${positional[6]:-142}
DATA_DIR=${positional[7]:-data/cnn_dm/}
CONFIG_PATH=${positional[8]:-configs/config.json}

RESULTS_DIR=${RESULTS_DIR:-results/bart_pyt_inference_$(date +%y%m%d_%H%M%S)}

python run_eval.py "$INIT_CKPT" "$CONFIG_PATH" "$DATA_DIR" "$RESULTS_DIR" \
    --gpus "$NUM_GPU" \
    --bs "$PRED_BS" \
    --precision "$PRECISION" \
    --eval_beams "$EVAL_BEAMS" \
    --max_source_length "$MAX_SOURCE_LEN" \
    --max_target_length "$MAX_TARGET_LEN" \
    --eval_max_gen_length "$MAX_TARGET_LEN" \
    "$@"

echo "results lie in $RESULTS_DIR"
