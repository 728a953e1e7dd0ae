"""What a program needs to know of a model to turn text into ids and back."""

from charlm.inference import TrainedModel


def vocabulary_json(trained: TrainedModel) -> dict[str, str]:
    """Level, characters (the place of each is its id; none for bytes), unit and direction, as in the config."""
    return {
        **trained.vocabulary.to_json(),
        "unit": trained.config.data.unit,
        "direction": trained.vocabulary.direction,
    }
