#!/usr/bin/env bash
# Run phase 2 of run_pretraining.sh alone, on long examples, from the weights of phase 1.
#
#   bash scripts/run_pretraining_phase2.sh <the 15 values of run_pretraining.sh> [--any_option_of_run_pretraining.py ...]
#
# The values and the environment are those of run_pretraining.sh (--help there); those of phase 1 do nothing here.
set -euo pipefail
phases=(2)
source "$(dirname "$0")/run_pretraining.sh"
