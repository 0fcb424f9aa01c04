"""What actors are trained by."""
