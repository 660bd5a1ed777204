#!/usr/bin/env bash
# Fine-tune BART to answer questions about texts, and score it.
#
#   bash scripts/run_squad.sh <DATA_DIR> <CONFIG_PATH> <NUM_GPU> <LR> <BS> <ACCUM> <PREC> <TRAIN_STEPS> <WARMUP_STEPS>
#       <MAX_SOURCE_LEN> <EVAL_BS> <SPLIT> [--any_option_of_finetune.py ...]
#
# DATA_DIR holds SQuAD's files (train-v1.1.json, dev-v1.1.json), or tables with the columns id, question, context and answers,
# or is hub:rajpurkar/squad. SPLIT is the split to score: val, which is SQuAD's dev set, or test. A preset of
# scripts/params/squad_params.sh supplies all values: $(source scripts/params/squad_params.sh && squad_v1). If some questions
# have no answer, add --version_2_with_negative. The other values and the environment are those of run_glue.sh.
set -euo pipefail
source "$(dirname "$0")/task.sh"

read_arguments DATA_DIR= "${task_values[@]}" SPLIT=val -- "$@"
[[ $DATA_DIR ]] || fail_preset squad_params.sh DATA_DIR
[[ $SPLIT == val || $SPLIT == test ]] || fail "SPLIT is '$SPLIT'; allowed: val, test"
train_and_score question_answering "$SPLIT"
