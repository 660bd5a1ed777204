# What the scripts of single tasks share. To be sourced behind arguments.sh.
# shellcheck shell=bash
# shellcheck disable=SC2154 # arguments.sh and the script set the variables

# The values that they all take, with the defaults of most.
task_values=(CONFIG_PATH=configs/config.json NUM_GPU=1 LR=1e-5 BS=32 ACCUM=1 PREC=bf16 TRAIN_STEPS=5000 WARMUP_STEPS=300
    MAX_SOURCE_LEN=512 EVAL_BS=64)

# Train a task on DATA_DIR and score splits of it; what both commands get is in the array `shared`, and what the scoring
# alone gets in `scoring`.
train_and_score() { # task, splits
    local name i words evaluation=()
    read_precision PREC fp16 bf16 tf32 fp32
    export RESULTS_DIR=${RESULTS_DIR:-results/$1_$(date +%y%m%d_%H%M%S)}
    # Options of both commands, among those behind the values.
    for ((i = 0; i < ${#options[@]}; i++)); do
        name=${options[i]%%=*}
        name=${name//-/_}
        case $name in
        __data_dir | __output_dir | __task | __gpus) fail "${options[i]}; give it by its place, and the output directory as RESULTS_DIR" ;;
        __version_2_with_negative) evaluation+=(--version_2_with_negative) ;;
        __*_field | __doc_stride | __max_query_length | __null_score_diff_threshold | __n_best_size | __max_answer_length | \
            __eval_max_gen_length | __n_test)
            [[ $name != __n_test ]] || name=__n_obs
            if [[ ${options[i]} == *=* ]]; then
                evaluation+=("--${name#__}=${options[i]#*=}")
            else
                evaluation+=("--${name#__}" "${options[i + 1]:-}")
            fi
            ;;
        esac
    done
    read -ra words <<<"${LAUNCH:-python}"
    words+=("$root/finetune.py" --do_train --task "$1" --data_dir "$DATA_DIR" --config_path "$CONFIG_PATH"
        --output_dir "$RESULTS_DIR" --seed "${SEED:-42}" --gpus "$NUM_GPU" ${precision[@]+"${precision[@]}"}
        --learning_rate "$LR" --lr_scheduler polynomial --warmup_steps "$WARMUP_STEPS" --max_steps "$TRAIN_STEPS"
        --train_batch_size "$BS" --gradient_accumulation_steps "$ACCUM" --sortish_sampler
        --max_source_length "$MAX_SOURCE_LEN" --weight_decay 0.01 --dropout 0.1 --attention_dropout 0.1
        --eval_batch_size "$EVAL_BS" ${shared[@]+"${shared[@]}"})
    check_config "${words[*]}"
    find_python
    case ${DATA_DIR%/} in
    data/sample/* | "$root"/data/sample/*) make_sample_tasks "${DATA_DIR%/*}" ;;
    esac
    echo "training on $DATA_DIR; results go to $RESULTS_DIR"
    run "${words[@]}" ${options[@]+"${options[@]}"}
    for name in $2; do
        run python "$root/run_eval.py" "$RESULTS_DIR/export" "$CONFIG_PATH" "$DATA_DIR" "$RESULTS_DIR" --task "$1" \
            --type_path "$name" --max_source_length "$MAX_SOURCE_LEN" --bs "$EVAL_BS" ${precision[@]+"${precision[@]}"} \
            ${shared[@]+"${shared[@]}"} ${scoring[@]+"${scoring[@]}"} ${evaluation[@]+"${evaluation[@]}"} \
            --overwrite_output_dir
    done
}

# Write topics, tags and questions of the synthetic corpus, unless they are there.
make_sample_tasks() { # folder of the corpus
    make_sample "$1"
    [[ -s $1/questions/test.jsonl ]] || run python -m utils.corpora.sample_tasks --output_dir "$1"
}
