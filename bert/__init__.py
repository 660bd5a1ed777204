"""BERT in PyTorch, built of BART's layers."""
