"""What every room stands on: errors, log, files, settings, records, devices, processes, checkpoints, runs."""
