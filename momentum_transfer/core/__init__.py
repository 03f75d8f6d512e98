"""The ground of every room: errors, log, files, settings, records, devices, processes, checkpoints."""
