"""Dense transfer: detectors and segmenters in two engines, their data and their scores."""
