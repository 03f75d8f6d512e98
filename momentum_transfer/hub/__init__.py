"""Weights and scores on the Hugging Face Hub: names ``hf:org/name``, files pulled and pushed, cards."""
