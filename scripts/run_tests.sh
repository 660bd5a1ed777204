#!/usr/bin/env bash
# Make the environment, and run the lint, the type checker and the test suite.
#
#   bash scripts/run_tests.sh [ARGUMENT of pytest ...]
#
# --slow and --network add the tests that are left out by default; tests that need a GPU run if there is one.
set -euo pipefail
source "$(dirname "$0")/arguments.sh"
cd "$root"

source scripts/setup_env.sh requirements-dev.txt
python -m ruff check .
python -m ruff format --check .
python -m mypy
shellcheck --external-sources .ci/run scripts/*.sh scripts/*/*.sh scripts/*/*.sbatch
hadolint Dockerfile Dockerfile.cpu
# Some tests need gigabytes, so no more than four at once.
exec python -m pytest -q --durations=10 -n auto --maxprocesses 4 --dist worksteal "$@"
