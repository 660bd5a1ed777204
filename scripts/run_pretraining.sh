#!/usr/bin/env bash
# Pretrain BART by denoising in two phases: on short examples and then, from those weights, on long ones.
#
#   bash scripts/run_pretraining.sh <TRAIN_BATCH_SIZE_PHASE1> <TRAIN_BATCH_SIZE_PHASE2> <LEARNING_RATE_PHASE1>
#       <LEARNING_RATE_PHASE2> <PRECISION> <USE_PRELN> <NUM_GPUS> <WARMUP_STEPS_PHASE1> <WARMUP_STEPS_PHASE2>
#       <TRAIN_STEPS_PHASE1> <TRAIN_STEPS_PHASE2> <SAVE_CHECKPOINTS_STEPS> <NUM_ACCUMULATION_STEPS_PHASE1>
#       <NUM_ACCUMULATION_STEPS_PHASE2> <CONFIG_PATH> [--any_option_of_run_pretraining.py ...]
#
# A preset of scripts/params/ supplies all values: $(source scripts/params/pretrain_params.sh && h100_8gpu_bf16). All values, or
# some from the right, may be left off; the defaults are
# 200 32 5e-3 4e-3 bf16 true 8 2166 200 95040 7560 100 40 120 configs/config.json.
# NUM_GPUS counts the GPUs of one machine; 0 is the CPU. The first argument that starts with "--" and everything after it go to
# run_pretraining.py in both phases (python run_pretraining.py --help), and win over the values that are fixed here.
# The same command goes on with a killed run; a phase that is done is not trained again. run_pretraining_phase1.sh and
# run_pretraining_phase2.sh take the same arguments, for one phase alone.
# The environment may set
#   DATA_DIR (default data): in it pretrain_lddl_128 and pretrain_lddl_512 hold the shards of utils.corpora.make_shards;
#       the shards in data/sample are made if they are missing;
#   SHARDS_PHASE1 and SHARDS_PHASE2: the folder of each phase's shards, in place of DATA_DIR; --data_dir wins over all;
#   RESULTS_DIR (default results/bart_pyt_pretraining): the folder for phase_1 and phase_2;
#   INIT_CHECKPOINT: a checkpoint, run, export or Hub name to start phase 1 from;
#   PHASE1_CKPT: a checkpoint or run to start phase 2 from, in place of phase 1;
#   LENGTH_PHASE1 and LENGTH_PHASE2 (default 128 and 512): tokens;
#   SEED (default 42; with a random seed, a run that goes on would see other noise);
#   LAUNCH (default python): the words that start run_pretraining.py, such as
#       "torchrun --nproc_per_node=8 --numa-binding=node".
set -euo pipefail
source "$(dirname "$0")/arguments.sh"
[[ $0 != "${BASH_SOURCE[0]}" ]] || phases=(1 2) # otherwise the script of one phase reads this

read_arguments TRAIN_BATCH_SIZE_PHASE1=200 TRAIN_BATCH_SIZE_PHASE2=32 LEARNING_RATE_PHASE1=5e-3 \
    LEARNING_RATE_PHASE2=4e-3 PRECISION=bf16 USE_PRELN=true NUM_GPUS=8 WARMUP_STEPS_PHASE1=2166 \
    WARMUP_STEPS_PHASE2=200 TRAIN_STEPS_PHASE1=95040 TRAIN_STEPS_PHASE2=7560 SAVE_CHECKPOINTS_STEPS=100 \
    NUM_ACCUMULATION_STEPS_PHASE1=40 NUM_ACCUMULATION_STEPS_PHASE2=120 CONFIG_PATH=configs/config.json -- "$@"
# Faults in the values of phase 2 must be found before phase 1, which takes days.
LENGTH_PHASE1=${LENGTH_PHASE1:-128} LENGTH_PHASE2=${LENGTH_PHASE2:-512}
require_numbers 0 NUM_GPUS WARMUP_STEPS_PHASE{1,2}
require_numbers 1 SAVE_CHECKPOINTS_STEPS {LENGTH,TRAIN_BATCH_SIZE,TRAIN_STEPS,NUM_ACCUMULATION_STEPS}_PHASE{1,2}
for phase in 1 2; do
    rate=LEARNING_RATE_PHASE$phase steps=TRAIN_STEPS_PHASE$phase warmup=WARMUP_STEPS_PHASE$phase
    [[ ${!rate} =~ ^[0-9]*\.?[0-9]+([eE][-+]?[0-9]+)?$ ]] || fail "$rate is '${!rate}'; allowed: a number above 0"
    ((${!warmup} < ${!steps})) || fail "$warmup is ${!warmup}; allowed: fewer than $steps, which is ${!steps}"
done
read_precision PRECISION fp16 bf16 tf32 fp32
case $USE_PRELN in
true) norms=(--pre_ln) ;;
false) norms=(--no_pre_ln) ;;
config) norms=() ;;
*) fail "USE_PRELN is '$USE_PRELN'; allowed: true, false, config" ;;
esac

DATA_DIR=${DATA_DIR:-data}
export RESULTS_DIR=${RESULTS_DIR:-results/bart_pyt_pretraining}
further=()
for ((i = 0; i < ${#options[@]}; i++)); do
    case ${options[i]//-/_} in
    __data_dir) DATA_DIR=${options[++i]:-} SHARDS_PHASE1='' SHARDS_PHASE2='' ;;
    __data_dir=*) DATA_DIR=${options[i]#*=} SHARDS_PHASE1='' SHARDS_PHASE2='' ;;
    __output_dir* | __max_source_length* | __resume_from_checkpoint* | __load_model_weights_only | __overwrite_output_dir)
        fail "${options[i]} is set for each phase; RESULTS_DIR, LENGTH_PHASE1 or PHASE1_CKPT in the environment change it"
        ;;
    *) further+=("${options[i]}") ;;
    esac
done
DATA_DIR=${DATA_DIR%/}
shards=("${SHARDS_PHASE1:-$DATA_DIR/pretrain_lddl_$LENGTH_PHASE1}"
    "${SHARDS_PHASE2:-$DATA_DIR/pretrain_lddl_$LENGTH_PHASE2}")

# Write the synthetic corpus as documents of eight stories each, and shards of it.
make_sample_shards() { # folder of the shards, length
    [[ ! -e $1/manifest.json ]] || return 0
    local split sample=${1%/*} documents=${1%/*}/documents tokenizer=tokenizer pairs=()
    [[ " ${further[*]-} " != *" --task"[\ =]"mlm_nsp "* ]] || tokenizer=bert_tokenizer pairs=(--task mlm_nsp)
    make_sample "$sample" ${pairs[@]+bert}
    mkdir -p "$documents"
    for split in train val; do
        [[ ! -e $documents/$split.txt ]] || continue # shards that a killed run has begun are of this file
        awk '{ print } NR % 8 == 0 { print "" }' "$sample/$split.source" >"$documents/$split.part"
        mv "$documents/$split.part" "$documents/$split.txt"
    done
    run python -m utils.corpora.make_shards --input "$documents/train.txt" --val_input "$documents/val.txt" \
        --tokenizer "$sample/$tokenizer" --output "$1" --sequence_length "$2" ${pairs[@]+"${pairs[@]}"}
}

has_checkpoints() { # run's directory
    local checkpoints=("$1"/*.ckpt)
    [[ -e ${checkpoints[0]} ]]
}

train() { # phase
    local folder=$RESULTS_DIR/phase_$1 start=(--resume_from_checkpoint last) words weights
    local length=LENGTH_PHASE$1 batch=TRAIN_BATCH_SIZE_PHASE$1 parts=NUM_ACCUMULATION_STEPS_PHASE$1
    local rate=LEARNING_RATE_PHASE$1 warmup=WARMUP_STEPS_PHASE$1 steps=TRAIN_STEPS_PHASE$1
    weights=${INIT_CHECKPOINT:-}
    if has_checkpoints "$folder"; then
        weights= # it goes on
    elif (($1 == 2)); then
        weights=${PHASE1_CKPT:-$RESULTS_DIR/phase_1/last.ckpt}
        [[ -e $weights ]] || weights=${weights%/last.ckpt} # whose export may be left
        [[ -e $weights || ! ${PHASE1_CKPT:-} ]] || fail "PHASE1_CKPT is '$PHASE1_CKPT'; no such file or folder"
    fi
    if [[ $weights ]]; then
        start=(--resume_from_checkpoint "$weights" --load_model_weights_only)
        # A run killed before its first checkpoint leaves files that would be taken for one to go on with.
        [[ -e $folder/train_summary.json ]] || start+=(--overwrite_output_dir)
    fi
    read -ra words <<<"${LAUNCH:-python}"
    words+=("$root/run_pretraining.py"
        --data_dir "${shards[$1 - 1]}" --config_path "$CONFIG_PATH" --output_dir "$folder" --seed "${SEED:-42}"
        --gpus "$NUM_GPUS" ${precision[@]+"${precision[@]}"} ${norms[@]+"${norms[@]}"} --max_source_length "${!length}"
        --train_batch_size "${!batch}" --gradient_accumulation_steps "${!parts}" --num_workers 1
        --lamb --learning_rate "${!rate}" --lr_scheduler polynomial --warmup_steps "${!warmup}" --max_steps "${!steps}"
        --weight_decay 0.1 --dropout 0.1 --attention_dropout 0.1 --gradient_clip_val 0.1
        --save_checkpoint_steps "$SAVE_CHECKPOINTS_STEPS" --log_freq "$SAVE_CHECKPOINTS_STEPS"
        "${start[@]}")
    echo "phase $1: training on ${shards[$1 - 1]}; results go to $folder"
    run "${words[@]}" ${further[@]+"${further[@]}"}
}

find_python
if [[ ${PHASE1_CKPT:-} ]]; then
    [[ ${phases[*]} == 1 ]] || phases=(2)
elif [[ ${phases[*]} == 2 ]] && ! has_checkpoints "$RESULTS_DIR/phase_2"; then
    summary=$RESULTS_DIR/phase_1/train_summary.json # which is written last
    [[ -e $summary && ! ${summary%/*}/last.ckpt -nt $summary ]] ||
        fail "phase 1 is not done: no $summary behind its last step; train it, or name its weights by PHASE1_CKPT"
fi
# A preset that does not exist leaves none.
((given > 0)) || echo "0 positional values: NVIDIA's are used, which --help lists, on $NUM_GPUS GPUs"
remaining=()
for phase in "${phases[@]}"; do
    steps=TRAIN_STEPS_PHASE$phase
    if grep -qs "\"steps\": ${!steps}," "$RESULTS_DIR/phase_$phase/train_summary.json"; then
        echo "phase $phase is done: $RESULTS_DIR/phase_$phase"
        continue
    fi
    remaining+=("$phase")
    length=LENGTH_PHASE$phase folder=${shards[phase - 1]}
    case $folder in
    data/sample/* | "$root"/data/sample/*) make_sample_shards "$folder" "${!length}" ;;
    *)
        [[ -e $folder/manifest.json ]] || fail "no manifest.json in $folder, the data of phase $phase; make it with\
 python -m utils.corpora.make_shards, or name the folder that holds it by DATA_DIR"
        ;;
    esac
done
for phase in ${remaining[@]+"${remaining[@]}"}; do train "$phase"; done
