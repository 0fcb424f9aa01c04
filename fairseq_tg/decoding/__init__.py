"""Decoding: the oracle search that builds a corpus, and the engines it can use."""
