"""The tg models: one file for each family, the base presets of the paper, and what they share."""
