#!/usr/bin/env bash
# Fetches raw text for pretraining from the Hub: Wikipedia, news, OpenWebText and books, some 100 GB.
#
#   bash scripts/get_pretraining_data.sh FOLDER [wikipedia] [cc_news] [openwebtext] [books] [--max_documents N]
#
# All four unless some are named; names of other sets on the Hub are taken too. A run that was killed goes on.
# utils.corpora.make_shards makes shards of the folder.
set -euo pipefail
source "$(dirname "$0")/arguments.sh"

find_python
exec python -m utils.corpora.get_pretraining_data "$@"
