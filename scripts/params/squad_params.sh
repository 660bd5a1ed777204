# Presets of run_squad.sh, to be sourced:
#
#   bash scripts/run_squad.sh $(source scripts/params/squad_params.sh && cpu_smoke)
# shellcheck shell=bash

# NVIDIA's learning rate and windows for BERT on SQuAD; two epochs of batches of 32.
squad_v1() { echo hub:rajpurkar/squad configs/config.json 1 3e-5 32 1 bf16 5500 550 384 64 val; }
squad_v2() { echo hub:rajpurkar/squad_v2 configs/config.json 1 3e-5 32 1 bf16 8200 820 384 64 val --version_2_with_negative; }

# A minute or two on a laptop, to see that everything runs: questions of the synthetic corpus of the quickstart.
cpu_smoke() {
    echo data/sample/questions configs/config_tiny.json 0 2e-3 16 1 fp32 700 70 160 64 test --model_name_or_path scratch \
        --tokenizer data/sample/tokenizer --dropout 0 --attention_dropout 0 --gradient_clip_val 1 --num_workers 0 \
        --log_every_n_steps 100
}
