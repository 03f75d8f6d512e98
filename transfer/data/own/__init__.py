"""Data sets of one's own, in the forms that labelling tools export, as the data sets that engines read."""
