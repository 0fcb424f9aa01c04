"""Long work in several processes: of this machine, or of a Slurm cluster."""
