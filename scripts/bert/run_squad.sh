#!/usr/bin/env bash
# Fine-tune BERT on SQuAD and score it on its dev set.
#
#   bash scripts/bert/run_squad.sh <INIT_CHECKPOINT> <EPOCHS> <BATCH_SIZE> <LEARNING_RATE> <WARMUP_PROPORTION> <PRECISION>
#       <NUM_GPU> <SEED> <SQUAD_DIR> <VOCAB_FILE> <OUT_DIR> <MODE> <CONFIG_FILE> <MAX_STEPS> [--any_option_of_finetune.py ...]
#
# The values and their defaults are those of NVIDIA's script; they may be left off from the right. A preset supplies all:
# $(source scripts/params/bert_squad_params.sh && dgxa100-80g_8gpu_fp16). INIT_CHECKPOINT is a checkpoint, run, export or
# Hub name; scratch means random weights. SQUAD_DIR holds train-v1.1.json and dev-v1.1.json, or is hub:NAME. VOCAB_FILE is a
# folder with a vocabulary that replaces the checkpoint's own. MODE is train, eval or "train eval" (in quotes); eval scores
# INIT_CHECKPOINT. MAX_STEPS, unless -1, ends training in place of EPOCHS. For SQuAD 2 add --version_2_with_negative.
set -euo pipefail
source "$(dirname "$0")/../task.sh"

read_arguments INIT_CHECKPOINT=google-bert/bert-large-uncased EPOCHS=2.0 BATCH_SIZE=4 LEARNING_RATE=3e-5 \
    WARMUP_PROPORTION=0.1 PRECISION=fp16 NUM_GPU=8 SEED=1 SQUAD_DIR=hub:rajpurkar/squad VOCAB_FILE= \
    OUT_DIR=results/bert_squad MODE="train eval" CONFIG_FILE=configs/bert_large.json MAX_STEPS=-1 -- "$@"
[[ $EPOCHS =~ ^([1-9][0-9]*)(\.0*)?$ ]] || fail "EPOCHS is '$EPOCHS'; allowed: a whole number, at least 1"
training=(--model_name_or_path "$INIT_CHECKPOINT" --lr_scheduler linear --warmup_proportion "$WARMUP_PROPORTION")
[[ $MAX_STEPS != -1 ]] || training+=(--max_epochs "${BASH_REMATCH[1]}")
vocabulary=()
[[ ! $VOCAB_FILE ]] || vocabulary=(--tokenizer "$VOCAB_FILE")
training+=(${vocabulary[@]+"${vocabulary[@]}"})
# shellcheck disable=SC2034,SC2153 # task.sh reads them, read_arguments sets PRECISION
DATA_DIR=$SQUAD_DIR CONFIG_PATH=$CONFIG_FILE LR=$LEARNING_RATE BS=$BATCH_SIZE ACCUM=1 PREC=$PRECISION
TRAIN_STEPS=$MAX_STEPS WARMUP_STEPS=0 MAX_SOURCE_LEN=384 EVAL_BS=8
export RESULTS_DIR=$OUT_DIR
case $MODE in
"train eval") train_and_score question_answering val ;;
train) SCORE=0 train_and_score question_answering val ;;
eval)
    read_precision PREC fp16 bf16 tf32 fp32
    score "$INIT_CHECKPOINT" "$RESULTS_DIR" --task question_answering --type_path val \
        ${vocabulary[@]+"${vocabulary[@]}"} ${options[@]+"${options[@]}"} --overwrite_output_dir
    ;;
*) fail "MODE is '$MODE'; allowed: train, eval, 'train eval'" ;;
esac
