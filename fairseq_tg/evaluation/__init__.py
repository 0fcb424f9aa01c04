"""How good and how fast: systems that translate a test set, times taken fairly, scores, and two writers over them."""
