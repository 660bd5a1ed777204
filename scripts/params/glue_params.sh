# Presets for GLUE, to be sourced. Learning rates, batches and steps are those of fairseq's README; its betas are 0.9 and 0.98,
# ours are 0.9 and 0.999. A function prints the arguments of run_glue.sh:
#
#   bash scripts/run_glue.sh $(source scripts/params/glue_params.sh && mnli)
# shellcheck shell=bash

_preset() { # name, then the columns below
    eval "$1() { echo $1 configs/config.json 1 $2 32 $3 bf16 $4 $5 512 64; }"
}

#       name  LR  ACCUM TRAIN_STEPS WARMUP_STEPS
_preset mnli 5e-6 4 30968  1858
_preset qnli 1e-5 1 33112  1986
_preset qqp  1e-5 1 113272 6796
_preset rte  1e-5 1 1018   61
_preset sst2 5e-6 4 5233   314
_preset mrpc 2e-5 2 1148   68
_preset cola 2e-5 2 1334   80
_preset stsb 2e-5 1 1799   107

# A minute on a laptop, to see that everything runs: topics of the synthetic corpus of the quickstart.
cpu_smoke() {
    echo data/sample/topics configs/config_tiny.json 0 2e-3 16 1 fp32 300 30 160 64 --model_name_or_path scratch \
        --tokenizer data/sample/tokenizer --dropout 0 --attention_dropout 0 --gradient_clip_val 1 --num_workers 0 \
        --log_every_n_steps 100
}
