"""The WordPiece tokenizer."""
