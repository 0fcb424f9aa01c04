"""Fast search inside fairseq: the native engine, and greedy sessions in torch."""
