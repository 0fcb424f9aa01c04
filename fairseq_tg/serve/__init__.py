"""The HTTP service of compiled models, with LibreTranslate's API; it needs neither fairseq nor torch."""
