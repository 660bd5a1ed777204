#!/usr/bin/env bash
# From nothing to a trained, scored summariser in minutes on two CPU cores: environment, a sample corpus of synthetic
# newswire, a vocabulary, configs/config_tiny.json trained from scratch, beam search over the test set, ROUGE.
# What an earlier run has finished is skipped. PYTHON names the interpreter of a new environment. Only pip needs a network.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

data=data/sample
vocabulary=$data/tokenizer
config=configs/config_tiny.json
results=results/quickstart

# All hyperparameters of the quickstart.
vocab_size=1600
batch_size=16 learning_rate=2e-3 steps=1500 warmup_steps=150
source_length=160 target_length=64 beams=4
val_interval=1.0 patience=100
# What suits a small model trained from scratch, where the recipe has what suits the fine-tuning of a large one.
extras=(--no_freeze_embeds --lr_scheduler linear --label_smoothing 0 --weight_decay 0.01 --dropout 0
    --attention_dropout 0 --gradient_clip_val 1 --num_workers 0 --log_every_n_steps 100)

phase() { # what begins, with the time so far
    echo
    echo "[$((SECONDS / 60)):$(printf %02d $((SECONDS % 60)))] $1"
}
unless_there() { # the file that a command writes last, the command
    if [[ -s $1 ]]; then
        echo "${1%/*} is there already"
    else
        "${@:2}"
    fi
}

phase "environment"
source scripts/setup_env.sh requirements.txt
installed=$SECONDS

phase "sample corpus"
unless_there $data/test.target python -m utils.corpora.sample_corpus --output_dir $data

phase "vocabulary"
unless_there $vocabulary/tokenizer_config.json \
    python -m utils.corpora.train_tokenizer --data_dir $data --output_dir $vocabulary --vocab_size $vocab_size

export RESULTS_DIR=$results
if [[ ! -s $results/train_summary.json ]]; then # written after the export
    phase "training, then scoring with beam search"
    rm -rf $results # what an interrupted run left
    bash scripts/run_summarization.sh $data $config 0 $learning_rate $batch_size 1 fp32 $steps $warmup_steps \
        $source_length $target_length $beams 64 64 $val_interval $patience \
        --model_name_or_path scratch --tokenizer $vocabulary "${extras[@]}"
elif [[ ! -s $results/test_scores.json || ! $results/report.html -nt $results/test_scores.json ]]; then
    phase "scoring with beam search" # whose report is written last
    bash scripts/run_eval_summarization.sh $results/export 64 0 fp32 $beams $source_length $target_length $data $config
fi

phase "results"
python -m utils.evaluation.show $results
echo
echo "Curves, scores and every article with its summary, for a browser: $results/report.html"
echo
echo "$((SECONDS - installed)) seconds, installation apart"
