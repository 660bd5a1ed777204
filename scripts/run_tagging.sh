#!/usr/bin/env bash
# Fine-tune BART to tag the words of texts, such as the names in them, and score it on the test split.
#
#   bash scripts/run_tagging.sh <DATA_DIR> <CONFIG_PATH> <NUM_GPU> <LR> <BS> <ACCUM> <PREC> <TRAIN_STEPS> <WARMUP_STEPS>
#       <MAX_SOURCE_LEN> <EVAL_BS> [--any_option_of_finetune.py ...]
#
# DATA_DIR holds {train,val,test}.conll, or tables with a column of words and one of their tags, or is hub:NAME. The log says the
# columns and the scheme of tags that were found; --words_column and --tags_column name other columns. A preset takes a minute on
# a laptop: $(source scripts/params/tagging_params.sh && cpu_smoke). The other values and the environment are those of run_glue.sh.
set -euo pipefail
source "$(dirname "$0")/task.sh"

read_arguments DATA_DIR= "${task_values[@]}" -- "$@"
[[ $DATA_DIR ]] || fail_preset tagging_params.sh DATA_DIR
train_and_score tagging test
