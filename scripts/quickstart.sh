#!/usr/bin/env bash
# From nothing to a trained, scored summariser in minutes on two CPU cores: environment, a sample corpus of synthetic
# newswire, a vocabulary, configs/config_tiny.json trained from scratch, beam search over the test set, ROUGE.
# What an earlier run has finished is skipped. PYTHON names the interpreter to use. Only pip needs a network.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

data=data/sample
vocabulary=$data/tokenizer
config=configs/config_tiny.json
results=results/quickstart

# The hyperparameters of the quickstart, all of them.
vocab_size=1600
learning_rate=2e-3
batch_size=16
steps=1500
warmup_steps=150
source_length=160
target_length=64
beams=4
val_interval=1.0
patience=100
# What suits a small model trained from scratch, in place of what suits the fine-tuning of a large one.
extras=(--no_freeze_embeds --lr_scheduler linear --label_smoothing 0 --weight_decay 0.01 --dropout 0
    --attention_dropout 0 --gradient_clip_val 1 --num_workers 0 --log_every_n_steps 100)

phase() { # what, with seconds so far
    echo
    echo "[$((SECONDS / 60)):$(printf %02d $((SECONDS % 60)))] $1"
}

phase "environment"
source scripts/setup_env.sh requirements.txt
installed=$SECONDS

phase "sample corpus"
if [[ -s $data/test.target ]]; then # written last
    echo "$data is there already"
else
    python -m utils.data.sample_corpus --output_dir "$data"
fi

phase "vocabulary"
if [[ -s $vocabulary/tokenizer_config.json ]]; then # written last
    echo "$vocabulary is there already"
else
    python -m utils.data.train_tokenizer --data_dir "$data" --output_dir "$vocabulary" --vocab_size "$vocab_size"
fi

export RESULTS_DIR=$results
if [[ -s $results/train_summary.json ]]; then # written after the export
    phase "training"
    echo "$results/export is trained already"
    phase "scoring"
    # The report is written last; scores without it may be an earlier version's, which lack what is shown below.
    if [[ -s $results/test_scores.json && $results/report.html -nt $results/test_scores.json ]]; then
        echo "$results/test_scores.json is there already"
    else
        bash scripts/run_eval_summarization.sh "$results/export" 64 0 fp32 "$beams" "$source_length" "$target_length" \
            "$data" "$config"
    fi
else
    phase "training, then scoring with beam search"
    rm -rf "$results" # what a run that was broken off left
    bash scripts/run_summarization.sh "$data" "$config" 0 "$learning_rate" "$batch_size" 1 fp32 "$steps" \
        "$warmup_steps" "$source_length" "$target_length" "$beams" 64 64 "$val_interval" "$patience" \
        --model_name_or_path scratch --tokenizer "$vocabulary" "${extras[@]}"
fi

phase "results"
python -m utils.evaluation.show "$results" "$data"
echo
echo "Curves, scores and every article with its summary, for a browser: $results/report.html"
echo
echo "$((SECONDS - installed)) seconds, installation apart"
