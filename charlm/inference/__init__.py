"""What a trained model is used for: sampling, evaluation, dynamic evaluation, novelty."""
