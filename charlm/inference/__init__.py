"""Use a trained model: write text with it, score text with it.

    import charlm

    model = charlm.load("runs/mine")  # a run's folder or a checkpoint file
    print(model.sample("ROMEO:", length=300, temperature=0.7, seed=1))
    score = model.evaluate("To be, or not to be")
    print(score.nats_per_char, score.bits_per_char)

`load` returns a `TrainedModel`, which is enough for most uses; the other functions take a CharLM. This file imports
nothing.

    loading.py       load: a TrainedModel from a run's folder or a checkpoint file
    trained.py       TrainedModel: a checkpoint's model, vocabulary and config, and their uses
    reader.py        Reader: reads texts through the network, window after window; activations; predict
    options.py       SamplingOptions: how text is drawn
    sampling.py      sample_text: characters drawn one by one, by temperature, top-k and top-p, up to a stop text
    evaluation.py    evaluate: the cross-entropy of a text
    dynamic.py       evaluate_dynamically: the same while the model keeps learning
    texts.py         score_texts, score_records, text_features: many texts, or lines as they arrive, one by one
    reach.py         context_curve: the loss by length of context; gradient_norms: what flows back to earlier inputs
    labels.py        likeliest_labels: a classification of lines; check_labels: whether the model knows the labels
    seen.py          what weights were trained on, and which passages of a text occur there
"""
