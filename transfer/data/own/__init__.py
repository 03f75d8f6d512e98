"""Your own data sets: what labelling tools export, as the data sets that engines read."""
