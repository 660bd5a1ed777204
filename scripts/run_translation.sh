#!/usr/bin/env bash
# Fine-tune BART to translate, and score it on the test split.
#
#   bash scripts/run_translation.sh <DATA_DIR> <CONFIG_PATH> <NUM_GPU> <LR> <BS> <ACCUM> <PREC> <TRAIN_STEPS> <WARMUP_STEPS>
#       <MAX_SOURCE_LEN> <EVAL_BS> <MAX_TARGET_LEN> <EVAL_BEAMS> [--any_option_of_finetune.py ...]
#
# DATA_DIR holds {train,val,test}.{source,target}, a sentence a line. For a source language that BART was not pretrained on, the
# paper trains in two runs: the first with --source_encoder_layers 6 --source_tokenizer DIR --translation_stage 1, the second from
# its weights with --model_name_or_path RESULTS_DIR --translation_stage 2. The other values and the environment are those of
# run_glue.sh.
set -euo pipefail
source "$(dirname "$0")/task.sh"

read_arguments DATA_DIR= "${task_values[@]/config.json/config_translation.json}" MAX_TARGET_LEN=256 EVAL_BEAMS=5 -- "$@"
[[ $DATA_DIR ]] || fail "0 positional values; give at least DATA_DIR"
training=(--max_target_length "$MAX_TARGET_LEN" --eval_max_gen_length "$MAX_TARGET_LEN" --label_smoothing 0.1
    --eval_beams 0 --pred_beams "$EVAL_BEAMS")
train_and_score translation test
