#!/usr/bin/env bash
# Pretrain BERT on masked tokens and next sentences in two phases: on pairs of 128 tokens and then, from those weights, of 512.
#
#   bash scripts/bert/run_pretraining.sh <TRAIN_BATCH_SIZE> <LEARNING_RATE> <PRECISION> <NUM_GPUS> <WARMUP_PROPORTION>
#       <TRAIN_STEPS> <SAVE_CHECKPOINT_STEPS> <RESUME_TRAINING> <CREATE_LOGFILE> <ACCUMULATE_GRADIENTS>
#       <GRADIENT_ACCUMULATION_STEPS> <SEED> <JOB_NAME> <ALLREDUCE_POST_ACCUMULATION> <ALLREDUCE_POST_ACCUMULATION_FP16>
#       <TRAIN_BATCH_SIZE_PHASE2> <LEARNING_RATE_PHASE2> <WARMUP_PROPORTION_PHASE2> <TRAIN_STEPS_PHASE2>
#       <GRADIENT_ACCUMULATION_STEPS_PHASE2> <DATA_DIR_PHASE1> <DATA_DIR_PHASE2> <CODEDIR> <INIT_CHECKPOINT>
#       <WIKIPEDIA_SOURCE> <NUM_DASK_WORKERS> <NUM_SHARDS_PER_WORKER> <NUM_WORKERS> <SAMPLE_RATIO> <PHASE2_BIN_SIZE>
#       <MASKING> <BERT_CONFIG> [--any_option_of_run_pretraining.py ...]
#
# The values and their defaults are those of NVIDIA's script; they may be left off from the right. A preset supplies all:
# $(source scripts/params/bert_pretrain_params.sh && dgxa100-80g_8gpu_fp16). A batch is that of one GPU and optimizer step.
# DATA_DIR_PHASE1 and _PHASE2 are folders of shards; if one is missing, it is made from the texts in WIKIPEDIA_SOURCE.
# INIT_CHECKPOINT, unless None, has the weights to begin with.
# RESUME_TRAINING, CREATE_LOGFILE, ALLREDUCE_POST_ACCUMULATION(_FP16), CODEDIR, SAMPLE_RATIO and MASKING change nothing: the same
# command goes on with a killed run, and masks are drawn anew in each epoch.
# The environment may set VOCAB_FILE, folder or Hub name of the vocabulary for new shards (default
# google-bert/bert-large-uncased); RESULTS_DIR (default results/JOB_NAME), for phase_1 and phase_2; PHASE1_CKPT and LAUNCH, as
# for run_pretraining.sh.
set -euo pipefail
source "$(dirname "$0")/../arguments.sh"

read_arguments TRAIN_BATCH_SIZE=8192 LEARNING_RATE=6e-3 PRECISION=fp16 NUM_GPUS=8 WARMUP_PROPORTION=0.2843 \
    TRAIN_STEPS=7038 SAVE_CHECKPOINT_STEPS=200 RESUME_TRAINING=false CREATE_LOGFILE=true ACCUMULATE_GRADIENTS=true \
    GRADIENT_ACCUMULATION_STEPS=128 SEED=12439 JOB_NAME=bert_lamb_pretraining ALLREDUCE_POST_ACCUMULATION=true \
    ALLREDUCE_POST_ACCUMULATION_FP16=true TRAIN_BATCH_SIZE_PHASE2=4096 LEARNING_RATE_PHASE2=4e-3 \
    WARMUP_PROPORTION_PHASE2=0.128 TRAIN_STEPS_PHASE2=1563 GRADIENT_ACCUMULATION_STEPS_PHASE2=512 \
    DATA_DIR_PHASE1=data/pretrain_mlm_nsp_128 DATA_DIR_PHASE2=data/pretrain_mlm_nsp_512 CODEDIR= INIT_CHECKPOINT=None \
    WIKIPEDIA_SOURCE=data/wikipedia NUM_DASK_WORKERS= NUM_SHARDS_PER_WORKER=128 NUM_WORKERS=4 SAMPLE_RATIO=0.9 \
    PHASE2_BIN_SIZE=64 MASKING=static BERT_CONFIG=configs/bert_large.json -- "$@"
((given > 0)) || echo "0 positional values: NVIDIA's are used, which --help lists, on $NUM_GPUS GPUs"
NUM_DASK_WORKERS=${NUM_DASK_WORKERS:-$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)} # macOS has no nproc
require_numbers 1 {TRAIN_BATCH_SIZE,TRAIN_STEPS,GRADIENT_ACCUMULATION_STEPS}{,_PHASE2} NUM_DASK_WORKERS \
    NUM_SHARDS_PER_WORKER PHASE2_BIN_SIZE
case $ACCUMULATE_GRADIENTS in
true) ;;
false) GRADIENT_ACCUMULATION_STEPS=1 GRADIENT_ACCUMULATION_STEPS_PHASE2=1 ;;
*) fail "ACCUMULATE_GRADIENTS is '$ACCUMULATE_GRADIENTS'; allowed: true, false" ;;
esac
micro_batches=() warmups=()
for phase in '' _PHASE2; do
    batch=TRAIN_BATCH_SIZE$phase parts=GRADIENT_ACCUMULATION_STEPS$phase
    warmup=WARMUP_PROPORTION$phase steps=TRAIN_STEPS$phase
    ((${!batch} % ${!parts} == 0)) || fail "$batch is ${!batch}; allowed: a multiple of $parts, which is ${!parts}"
    [[ ${!warmup} =~ ^(0|0?\.[0-9]+)$ ]] || fail "$warmup is '${!warmup}'; allowed: 0 or more, below 1"
    micro_batches+=($((${!batch} / ${!parts})))
    warmups+=("$(awk "BEGIN { printf \"%.0f\", ${!warmup} * ${!steps} }")")
done
[[ " ${options[*]-}" != *" --data"[-_]dir* ]] || fail "--data_dir; give DATA_DIR_PHASE1 and DATA_DIR_PHASE2 by their places"

make_shards() { # folder, length, further options
    case $1 in data/sample/* | "$root"/data/sample/*) return ;; esac # run_pretraining.sh makes them
    [[ ! -e $1/manifest.json ]] || return 0
    [[ -e $WIKIPEDIA_SOURCE ]] || fail "no manifest.json in $1, and no texts to make it from: WIKIPEDIA_SOURCE is\
 '$WIKIPEDIA_SOURCE'"
    run python -m utils.corpora.make_shards --task mlm_nsp --input "$WIKIPEDIA_SOURCE" --output "$1" \
        --tokenizer "${VOCAB_FILE:-google-bert/bert-large-uncased}" --sequence_length "$2" \
        --workers "$NUM_DASK_WORKERS" --shards $((NUM_DASK_WORKERS * NUM_SHARDS_PER_WORKER)) "${@:3}"
}
find_python
make_shards "$DATA_DIR_PHASE1" 128
# shellcheck disable=SC2046 # lengths are words
make_shards "$DATA_DIR_PHASE2" 512 --bins $(seq "$PHASE2_BIN_SIZE" "$PHASE2_BIN_SIZE" 511) 512

[[ $INIT_CHECKPOINT != None ]] || INIT_CHECKPOINT=
export SEED INIT_CHECKPOINT SHARDS_PHASE1=$DATA_DIR_PHASE1 SHARDS_PHASE2=$DATA_DIR_PHASE2
export RESULTS_DIR=${RESULTS_DIR:-results/$JOB_NAME}
# shellcheck disable=SC2153 # read_arguments sets PRECISION
exec bash "$root/scripts/run_pretraining.sh" "${micro_batches[@]}" "$LEARNING_RATE" "$LEARNING_RATE_PHASE2" \
    "$PRECISION" config "$NUM_GPUS" "${warmups[@]}" "$TRAIN_STEPS" "$TRAIN_STEPS_PHASE2" "$SAVE_CHECKPOINT_STEPS" \
    "$GRADIENT_ACCUMULATION_STEPS" "$GRADIENT_ACCUMULATION_STEPS_PHASE2" "$BERT_CONFIG" \
    --task mlm_nsp --num_workers "$NUM_WORKERS" --lr_scheduler poly_sqrt --weight_decay 0.01 --gradient_clip_val 1 \
    --adam_epsilon 1e-6 ${options[@]+"${options[@]}"}
