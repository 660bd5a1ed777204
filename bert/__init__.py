"""BERT in PyTorch, on what BART's network is made of."""
