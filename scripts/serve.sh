#!/usr/bin/env bash
# Serve summaries over HTTP.
#
#   bash scripts/serve.sh <MODEL> [--any_option_of_utils.serving ...]
#
# MODEL is a checkpoint file, an export, a run's directory or a Hub name. python -m utils.serving --help lists the
# options, such as --host and --port.
set -euo pipefail
source "$(dirname "$0")/arguments.sh"

find_python
exec python -m utils.serving "$@"
