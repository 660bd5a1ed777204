"""BART (Lewis et al., 2020, https://arxiv.org/abs/1910.13461): configuration, tokenizer, network, weights, decoding."""
