# Presets of run_tagging.sh, to be sourced:
#
#   bash scripts/run_tagging.sh $(source scripts/params/tagging_params.sh && cpu_smoke)
# shellcheck shell=bash

# A minute or two on a laptop, to see that everything runs: tags of the synthetic corpus of the quickstart.
cpu_smoke() {
    echo data/sample/tags configs/config_tiny.json 0 2e-3 16 1 fp32 500 50 160 64 --model_name_or_path scratch \
        --tokenizer data/sample/tokenizer --dropout 0 --attention_dropout 0 --gradient_clip_val 1 --num_workers 0 \
        --log_every_n_steps 100
}
