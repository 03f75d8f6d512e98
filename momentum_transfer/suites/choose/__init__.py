"""Which weights to start from, on your own data, under a budget in minutes."""
