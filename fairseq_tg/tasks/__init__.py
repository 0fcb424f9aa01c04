"""fairseq's tasks, extended, and models loaded for them."""
