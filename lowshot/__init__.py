"""Classification transfer: frozen features, kNN, retrieval, SVM, linear probes and few labels."""
