#!/usr/bin/env bash
# Check and measure on a GPU all that a machine without one cannot: tests, precisions, optimizers, strategies, speeds beside
# transformers, memory.
#
#   bash scripts/run_gpu_checks.sh <OUT> [CHECK ...]
#
# OUT, a new folder, gets checks.md, with a row for each check, and for each check a folder with its output. CHECK names a check, or
# the first words of several, such as "fine-tuning"; by default all are run. A CPU does what it can, on tiny models.
# The environment may set TOKENIZER (default facebook/bart-large), a Hub name or directory with BART's vocabulary.
set -euo pipefail
source "$(dirname "$0")/arguments.sh"

(($# > 0)) || fail "0 values; the folder for the results is expected"
find_python
make_sample data/sample
make_sample data/sample bert
exec python "$root/scripts/benchmarks/gpu_checks.py" "$@"
