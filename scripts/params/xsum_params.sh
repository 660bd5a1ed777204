# Presets for XSum, to be sourced. A function prints the positional values of run_summarization.sh; the one with
# `_eval` behind its name those of run_eval_summarization.sh that follow the checkpoint:
#
#   bash scripts/run_summarization.sh $(source scripts/params/xsum_params.sh && dgxa100_8gpu_fp16)
#   bash scripts/run_eval_summarization.sh CKPT $(source scripts/params/xsum_params.sh && dgxa100_8gpu_fp16_eval)
# shellcheck shell=bash

_train() { # gpus, learning rate, batch, accumulation, precision, steps, warm-up, eval batch, prediction batch, interval, patience
    echo data/xsum configs/config_xsum.json "$1" "$2" "$3" "$4" "$5" "$6" "$7" 1024 60 6 "$8" "$9" "${@:10}"
}
_eval() { # prediction batch, gpus, precision
    echo "$1" "$2" "$3" 6 1024 60 data/xsum configs/config_xsum.json
}

dgxa100_8gpu_fp16() { _train 8 1.25e-4 40 1 fp16 2000 50 128 128 0.1; }
dgxa100_8gpu_fp16_eval() { _eval 128 8 fp16; }

dgxa100_8gpu_tf32() { _train 8 1.25e-4 24 1 tf32 3333 50 128 64 0.1; }
dgxa100_8gpu_tf32_eval() { _eval 64 8 tf32; }

dgx2_16gpu_fp16() { _train 16 1e-4 14 1 fp16 3500 100 128 96 0.3 1; }
dgx2_16gpu_fp16_eval() { _eval 96 16 fp16; }

dgx2_16gpu_fp32() { _train 16 1.25e-4 8 1 fp32 6125 150 96 32 0.3 1; }
dgx2_16gpu_fp32_eval() { _eval 32 16 fp32; }

dgx1_8gpu_fp16() { _train 8 7e-5 14 1 fp16 7000 200 128 64 0.3 1; }
dgx1_8gpu_fp16_eval() { _eval 96 8 fp16; }

dgx1_8gpu_fp32() { _train 8 7e-5 8 1 fp32 12250 200 96 32 0.3 1; }
dgx1_8gpu_fp32_eval() { _eval 32 8 fp32; }

# Not of the published recipe: the A100 recipe's global batch of 320 on newer machines, in bf16.
h100_8gpu_bf16() { _train 8 1.25e-4 40 1 bf16 2000 50 128 128 0.1; }
h100_8gpu_bf16_eval() { _eval 128 8 bf16; }

h200_1gpu_bf16() { _train 1 1.25e-4 40 8 bf16 2000 50 128 128 0.1; }
h200_1gpu_bf16_eval() { _eval 128 1 bf16; }

# Seconds on a laptop, over the sample corpus that quickstart.sh makes: shows that everything runs. Needs
# --model_name_or_path scratch --tokenizer data/sample/tokenizer behind it.
cpu_smoke() { echo data/sample configs/config_tiny.json 0 1e-3 8 1 fp32 20 5 128 48 2 32 32 1.0 1; }
cpu_smoke_eval() { echo 32 0 fp32 2 128 48 data/sample configs/config_tiny.json; }
