"""Which errors a detector makes: kinds of error, confusions, thresholds, calibration, hard images."""
