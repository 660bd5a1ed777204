#!/usr/bin/env bash
# Run phase 1 of run_pretraining.sh alone, on short examples.
#
#   bash scripts/run_pretraining_phase1.sh <the 15 values of run_pretraining.sh> [--any_option_of_run_pretraining.py ...]
#
# The values and the environment are those of run_pretraining.sh (--help there); those of phase 2 do nothing here.
set -euo pipefail
phases=(1)
source "$(dirname "$0")/run_pretraining.sh"
