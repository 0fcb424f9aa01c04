"""`fairseq-tg report`: the paper's tables and figures for the user's own model and data."""
