"""What the benchmark and the report have in common: systems that translate, a test set, and times taken fairly."""
