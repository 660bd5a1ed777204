# What the scripts of single tasks share, which source it in place of arguments.sh.
# shellcheck shell=bash
# shellcheck disable=SC2034,SC2154 # arguments.sh and the script set the variables, and read `task_values`

source "$(dirname "${BASH_SOURCE[0]}")/arguments.sh"

# The values that they all take, with the defaults of most.
task_values=(CONFIG_PATH=configs/config.json NUM_GPU=1 LR=1e-5 BS=32 ACCUM=1 PREC=bf16 TRAIN_STEPS=5000 WARMUP_STEPS=300
    MAX_SOURCE_LEN=512 EVAL_BS=64)

fail_preset() { # the file of presets, what else may be given
    local presets
    presets=$(sed -nE '/_eval\(\)/d; s/^(_preset )?([a-z][a-z0-9_]*)(\(\)| ).*/\2/p' "$root/scripts/params/$1" | paste -sd ' ' -)
    fail "0 positional values; give at least $2, or \$(source scripts/params/$1 && PRESET) where PRESET is one of $presets"
}

# Train a task on DATA_DIR and score a split of it, unless SCORE is 0. The array `training` has further options.
train_and_score() { # task, split
    local words option
    read_precision PREC fp16 bf16 tf32 fp32
    export RESULTS_DIR=${RESULTS_DIR:-results/$1_$(date +%y%m%d_%H%M%S)}
    for option in ${options[@]+"${options[@]}"}; do
        case ${option//-/_} in
        __data_dir* | __config_path* | __output_dir* | __gpus* | __fp16 | __bf16 | __tf32 | __max_source_length* | \
            __*max_target_length* | __no_fp16 | __no_bf16 | __no_tf32)
            fail "$option; give it by its place, and the output directory as RESULTS_DIR"
            ;;
        esac
    done
    read -ra words <<<"${LAUNCH:-python}"
    words+=("$root/finetune.py" --do_train --task "$1" --data_dir "$DATA_DIR" --config_path "$CONFIG_PATH"
        --output_dir "$RESULTS_DIR" --seed "${SEED:-42}" --gpus "$NUM_GPU" ${precision[@]+"${precision[@]}"}
        --learning_rate "$LR" --lr_scheduler polynomial --warmup_steps "$WARMUP_STEPS" --max_steps "$TRAIN_STEPS"
        --train_batch_size "$BS" --gradient_accumulation_steps "$ACCUM" --sortish_sampler
        --max_source_length "$MAX_SOURCE_LEN" --weight_decay 0.01 --dropout 0.1 --attention_dropout 0.1
        --eval_batch_size "$EVAL_BS" ${training[@]+"${training[@]}"})
    [[ ${SCORE:-1} == 0 ]] || words+=(--do_predict --type_path "$2")
    find_python
    case $DATA_DIR/ in
    data/sample/* | "$root"/data/sample/*) make_sample "${DATA_DIR%data/sample*}data/sample" ;;
    esac
    echo "training on $DATA_DIR; results go to $RESULTS_DIR"
    run "${words[@]}" ${options[@]+"${options[@]}"}
}

# Score a model on NUM_GPU GPUs, with the options of the array `precision`; further options are run_eval.py's.
score() { # model, folder for the scores, options
    local launch=(python) device=cuda available
    require_numbers 0 NUM_GPU
    ((NUM_GPU > 0)) || device=cpu
    find_python
    if ((NUM_GPU > 1)); then
        # Otherwise each of the processes would report missing GPUs.
        available=$(python -c "import torch; print(torch.cuda.device_count())" 2>/dev/null) ||
            fail "python has no torch; $install"
        ((NUM_GPU <= available)) ||
            fail "NUM_GPU is $NUM_GPU; this machine has $available CUDA devices (NUM_GPU 0: the CPU; values given: $given)"
        launch=(python -m torch.distributed.run --standalone --nproc_per_node "$NUM_GPU")
    fi
    run "${launch[@]}" "$root/run_eval.py" "$1" "$CONFIG_PATH" "$DATA_DIR" "$2" --device "$device" \
        --max_source_length "$MAX_SOURCE_LEN" --bs "$EVAL_BS" ${precision[@]+"${precision[@]}"} "${@:3}"
}
