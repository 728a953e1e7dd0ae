import pytest

from charlm.inference import TrainedModel, load


@pytest.fixture
def model(trained_run) -> TrainedModel:
    return load(trained_run, device="cpu")
