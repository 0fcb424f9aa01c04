"""`fairseq-tg run`: from a base and its data to a trained actor and a report, in stages that are done once."""
