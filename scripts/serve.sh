#!/usr/bin/env bash
# Summaries over HTTP: bash scripts/serve.sh <MODEL> [--any_option_of_utils.serving ...]
# MODEL is a checkpoint file, an exported directory or a Hub name; --help lists the options.
exec python -m utils.serving "$@"
