"""Which weights to start from, on data of one's own: images with one label, plan and times, verdict."""
