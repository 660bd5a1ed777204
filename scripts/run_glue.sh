#!/usr/bin/env bash
# Fine-tune BART on a task of GLUE, or on classes of your own, and score it.
#
#   bash scripts/run_glue.sh <NAME> <CONFIG_PATH> <NUM_GPU> <LR> <BS> <ACCUM> <PREC> <TRAIN_STEPS> <WARMUP_STEPS>
#       <MAX_SOURCE_LEN> <EVAL_BS> [--any_option_of_finetune.py ...]
#
# A preset of scripts/params/glue_params.sh supplies all values: $(source scripts/params/glue_params.sh && mnli). NAME is cola,
# sst2, mrpc, stsb, qqp, mnli, qnli, rte or wnli, whose data come from the Hub, or a data directory. If you give values by hand,
# all but the first may be left off from the right. NUM_GPU counts the GPUs of one machine; 0 is the CPU. A task of GLUE is
# scored on its validation sets, and predictions for its test sets are written as gluebenchmark.com takes them; of a directory,
# the test split is scored. The environment may set SEED, RESULTS_DIR, LAUNCH and SCORE, as for run_summarization.sh.
set -euo pipefail
source "$(dirname "$0")/task.sh"

read_arguments NAME= "${task_values[@]}" -- "$@"
[[ $NAME ]] || fail_preset glue_params.sh NAME
DATA_DIR=$NAME
case $NAME in
cola | sst2 | mrpc | stsb | qqp | mnli | qnli | rte | wnli) ;;
*)
    train_and_score classification test
    exit
    ;;
esac
DATA_DIR=hub:nyu-mll/glue:$NAME
training=(--task_name "$NAME" --gradient_clip_val 0)
[[ $NAME != stsb ]] || training+=(--val_metric loss)
train_and_score classification val
[[ ${SCORE:-1} != 0 ]] || exit 0

score_further() { # folder, split, options
    score "$RESULTS_DIR/export" "$RESULTS_DIR/$1" --task classification --type_path "$2" --task_name "$NAME" "${@:3}" \
        --overwrite_output_dir
}
score_further submission test --predict
if [[ $NAME == mnli ]]; then
    score_further mismatched val --mismatched
    score_further submission_mismatched test --mismatched --predict
fi
