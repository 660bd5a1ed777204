#!/usr/bin/env bash
# Fine-tune BART on a data directory, then score the best checkpoint on its test split with beam search.
#
#   bash scripts/run_summarization.sh <DATA_DIR> <CONFIG_PATH> <NUM_GPU> <LR> <BS> <ACCUM> <PREC> <TRAIN_STEPS>
#       <WARMUP_STEPS> <MAX_SOURCE_LEN> <MAX_TARGET_LEN> <EVAL_BEAMS> <EVAL_BS> <PRED_BS> <VAL_CHECK_INTERVAL>
#       <PATIENCE> [--any_option_of_finetune.py ...]
#
# A preset of scripts/params/ supplies all values: $(source scripts/params/xsum_params.sh && dgxa100_8gpu_fp16). Of values
# given by hand all but the first may be left off from the right. NUM_GPU counts the GPUs of one machine, 0 is the CPU.
# DATA_DIR data/sample, the synthetic corpus of the preset cpu_smoke, is written where it is missing.
# Everything from the first argument that starts with "--" goes to finetune.py (python finetune.py --help) and wins over
# what is fixed here. Options that bear on the scores go to the scoring as well; those that a positional value gives are
# refused.
# Read from the environment: SEED (default 42); RESULTS_DIR (default results/bart_pyt_<stamp>), where
# --resume_from_checkpoint last goes on with an interrupted run; LAUNCH (default python), the words that start finetune.py,
# such as "torchrun --nproc_per_node=8 --numa-binding=node"; SCORE (default 1), where 0 leaves off the scoring.
set -euo pipefail
source "$(dirname "$0")/arguments.sh"

read_arguments DATA_DIR=data/cnn_dm/ CONFIG_PATH=configs/config.json NUM_GPU=8 LR=1e-4 BS=24 ACCUM=1 PREC=fp16 \
    TRAIN_STEPS=20000 WARMUP_STEPS=500 MAX_SOURCE_LEN=1024 MAX_TARGET_LEN=142 EVAL_BEAMS=4 EVAL_BS=128 PRED_BS=64 \
    VAL_CHECK_INTERVAL=0.3 PATIENCE=2 -- "$@"
if ((given == 0)); then # what a preset that does not exist leaves
    presets=$(sed -n 's/^_preset \([a-z0-9_]*\) .*/\1/p' "$root/scripts/params/xsum_params.sh" | tr '\n' ' ')
    fail "0 positional values; give at least DATA_DIR, or \$(source scripts/params/xsum_params.sh && PRESET) where PRESET\
 is one of ${presets}cpu_smoke"
fi
read_precision PREC fp16 bf16 tf32 fp32
for name in EVAL_BEAMS PRED_BS; do # which the training does not read
    [[ ${!name} =~ ^[1-9][0-9]*$ ]] || fail "$name is '${!name}'; allowed: a whole number, at least 1"
done

export RESULTS_DIR=${RESULTS_DIR:-results/bart_pyt_$(date +%y%m%d_%H%M%S)}
read -ra training <<<"${LAUNCH:-python}"
training+=("$root/finetune.py" --do_train
    --data_dir "$DATA_DIR" --config_path "$CONFIG_PATH" --output_dir "$RESULTS_DIR" --seed "${SEED:-42}"
    --gpus "$NUM_GPU" ${precision[@]+"${precision[@]}"} --amp_level O1
    --learning_rate "$LR" --lr_scheduler polynomial --warmup_steps "$WARMUP_STEPS" --max_steps "$TRAIN_STEPS"
    --train_batch_size "$BS" --gradient_accumulation_steps "$ACCUM" --sortish_sampler --freeze_embeds
    --max_source_length "$MAX_SOURCE_LEN" --max_target_length "$MAX_TARGET_LEN"
    --val_max_target_length "$MAX_TARGET_LEN" --test_max_target_length "$MAX_TARGET_LEN"
    --label_smoothing 0.1 --weight_decay 0.1 --dropout 0.1 --attention_dropout 0.1 --gradient_clip_val 0.1
    --eval_beams 0 --eval_batch_size "$EVAL_BS"
    --val_check_interval "$VAL_CHECK_INTERVAL" --early_stopping_patience "$PATIENCE")

scoring=()
for ((i = 0; i < ${#options[@]}; i++)); do
    name=${options[i]%%=*}
    name=${name//-/_}
    value=${options[i + 1]:-}
    if [[ ${options[i]} == *=* ]]; then
        value=${options[i]#*=}
    fi
    case $name in
    __data_dir | __config_path | __output_dir | __gpus | __*fp16 | __*bf16 | __*tf32 | __max_*_length | __*_max_target_length)
        fail "${options[i]}; give it by its place, and the output directory as RESULTS_DIR"
        ;;
    __task | __source_field | __target_field | __eval_max_gen_length) scoring+=("--${name#__}=$value") ;;
    __n_test) scoring+=("--n_obs=$value") ;;
    esac
done
check_config "${training[*]} --fp16 --bf16 --tf32 --task --source_field --target_field --eval_max_gen_length --n_test"

find_python
case ${DATA_DIR%/} in
data/sample | "$root/data/sample") make_sample "$DATA_DIR" ;;
esac
echo "training on $DATA_DIR; results go to $RESULTS_DIR"
training+=(${options[@]+"${options[@]}"})
if [[ ${SCORE:-1} == 0 ]]; then
    exec "${training[@]}"
fi
run "${training[@]}"
exec bash "$root/scripts/run_eval_summarization.sh" "$RESULTS_DIR/export" "$PRED_BS" "$NUM_GPU" "$PREC" "$EVAL_BEAMS" \
    "$MAX_SOURCE_LEN" "$MAX_TARGET_LEN" "$DATA_DIR" "$CONFIG_PATH" --overwrite_output_dir ${scoring[@]+"${scoring[@]}"}
