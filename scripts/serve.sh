#!/usr/bin/env bash
# Summaries over HTTP.
#
#   bash scripts/serve.sh <MODEL> [--any_option_of_utils.serving ...]
#
# MODEL is a checkpoint file, a Hub-format or run directory, or a Hub name. python -m utils.serving --help lists the
# options, such as --host and --port.
set -euo pipefail
source "$(dirname "$0")/arguments.sh"

find_python
exec python -m utils.serving "$@"
