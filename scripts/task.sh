# What the scripts of single tasks share. To be sourced behind arguments.sh.
# shellcheck shell=bash
# shellcheck disable=SC2034,SC2154 # arguments.sh and the script set the variables, and read `task_values`

# The values that they all take, with the defaults of most.
task_values=(CONFIG_PATH=configs/config.json NUM_GPU=1 LR=1e-5 BS=32 ACCUM=1 PREC=bf16 TRAIN_STEPS=5000 WARMUP_STEPS=300
    MAX_SOURCE_LEN=512 EVAL_BS=64)

# Options of both commands, without a value and with one.
both_flags=" __version_2_with_negative "
both=" __task_name __text_field __pair_field __label_field __words_field __tags_field __source_field __target_field \
 __doc_stride __max_query_length __null_score_diff_threshold __n_best_size __max_answer_length "

fail_preset() { # the file of presets, what else may be given
    local presets
    presets=$(sed -n '/_eval()/d; s/^\(_preset \)\{0,1\}\([a-z][a-z0-9_]*\)\(()\| \).*/\2/p' "$root/scripts/params/$1" | paste -sd ' ')
    fail "0 positional values; give at least $2, or \$(source scripts/params/$1 && PRESET) where PRESET is one of $presets"
}

# Train a task on DATA_DIR and score a split of it, unless SCORE is 0. What both commands get is in the array `shared`, and
# what one of them gets in `training` and `scoring`.
train_and_score() { # task, split
    local name i words place=${DATA_DIR%/}
    read_precision PREC fp16 bf16 tf32 fp32
    export RESULTS_DIR=${RESULTS_DIR:-results/$1_$(date +%y%m%d_%H%M%S)}
    for ((i = 0; i < ${#options[@]}; i++)); do
        name=${options[i]%%=*}
        name=${name//-/_}
        if [[ $both_flags == *" $name "* ]]; then
            scoring+=("--${name#__}")
        elif [[ $both == *" $name "* || $name == "__n_$2" ]]; then
            [[ $name != "__n_$2" ]] || name=__n_obs
            if [[ ${options[i]} == *=* ]]; then
                scoring+=("--${name#__}=${options[i]#*=}")
            else
                scoring+=("--${name#__}" "${options[i + 1]:-}")
            fi
        else
            case $name in
            __data_dir | __config_path | __output_dir | __task | __gpus | __*fp16 | __*bf16 | __*tf32 | __max_source_length | \
                __*max_target_length)
                fail "${options[i]}; give it by its place, and the output directory as RESULTS_DIR"
                ;;
            esac
        fi
    done
    read -ra words <<<"${LAUNCH:-python}"
    words+=("$root/finetune.py" --do_train --task "$1" --data_dir "$DATA_DIR" --config_path "$CONFIG_PATH"
        --output_dir "$RESULTS_DIR" --seed "${SEED:-42}" --gpus "$NUM_GPU" ${precision[@]+"${precision[@]}"}
        --learning_rate "$LR" --lr_scheduler polynomial --warmup_steps "$WARMUP_STEPS" --max_steps "$TRAIN_STEPS"
        --train_batch_size "$BS" --gradient_accumulation_steps "$ACCUM" --sortish_sampler
        --max_source_length "$MAX_SOURCE_LEN" --weight_decay 0.01 --dropout 0.1 --attention_dropout 0.1
        --eval_batch_size "$EVAL_BS" ${shared[@]+"${shared[@]}"} ${training[@]+"${training[@]}"})
    name="$both$both_flags"
    check_config "${words[*]} --fp16 --bf16 --tf32 --n_$2 ${name//__/--}"
    find_python
    [[ ${SCORE:-1} == 0 ]] || read_scoring_device
    case $place in
    data/sample | "$root"/data/sample) make_sample "$place" ;;
    data/sample/* | "$root"/data/sample/*) make_sample_tasks "${place%/*}" ;;
    esac
    echo "training on $DATA_DIR; results go to $RESULTS_DIR"
    words+=(${options[@]+"${options[@]}"})
    [[ ${SCORE:-1} != 0 ]] || exec "${words[@]}" </dev/null
    run "${words[@]}"
    score "$1" "$RESULTS_DIR" --type_path "$2" ${scoring[@]+"${scoring[@]}"}
}

# Score a model that was trained before; all options are run_eval.py's.
score_alone() { # task, split, model
    read_precision PREC fp16 bf16 tf32 fp32
    find_python
    read_scoring_device
    scored=$3
    score "$1" "$RESULTS_DIR" --type_path "$2" ${options[@]+"${options[@]}"}
}

score() { # task, folder for the scores, options
    run "${launch[@]}" "$root/run_eval.py" "${scored:-$RESULTS_DIR/export}" "$CONFIG_PATH" "$DATA_DIR" "$2" --task "$1" \
        --device "$device" --max_source_length "$MAX_SOURCE_LEN" --bs "$EVAL_BS" ${precision[@]+"${precision[@]}"} \
        ${shared[@]+"${shared[@]}"} "${@:3}" --overwrite_output_dir
}

# Write topics, tags and questions of the synthetic corpus, unless they are there.
make_sample_tasks() { # folder of the corpus
    make_sample "$1"
    [[ -s $1/questions/test.jsonl ]] || run python -m utils.corpora.sample_tasks --output_dir "$1"
}
