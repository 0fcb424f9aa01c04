"""The oracle k-best corpus: what is chosen, how it is stored, and the directory it is built in."""
