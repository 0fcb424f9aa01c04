"""`fairseq-tg bench`: how fast, how good, how heavy every way to decode a model is, side by side on this machine."""
