"""The byte-level BPE tokenizer."""
