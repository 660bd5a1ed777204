"""Text: lines, sentences, windows."""
