"""Reading data: line files, tables, shards; caches, batches, their order."""
