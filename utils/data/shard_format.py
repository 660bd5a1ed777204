"""What whoever makes shards and whoever reads them must agree on. It loads no torch: making shards needs none."""

MANIFEST, TOKENIZER = "manifest.json", "tokenizer"  # in a directory of shards
FORMAT = 1  # of the manifest
SPECIAL = 2  # tokens of an example that a shard does not hold: <s> and </s>
