"""The text that a model writes to be looked at."""

from charlm.data.line_split import NEWLINE
from charlm.inference import SamplingOptions, TrainedModel
from charlm.inference.line_samples import sample_lines
from charlm.inference.sampling import sample_text


def written_text(trained: TrainedModel, prompt: str, length: int, *, temperature: float, seed: int) -> str:
    """The prompt and `length` characters that the model writes; of a model of lines, several lines.

    Each of these lines begins with the prompt, and all are written until they have `length` characters in total.
    """
    options = SamplingOptions(length=length, temperature=temperature)
    joined = trained.vocabulary.joined
    if trained.network.begins is None:
        pieces = sample_text(trained.network, trained.vocabulary, prompt, options, [seed])
        return joined(prompt, "".join(piece for [piece] in pieces))
    lines, missing = [], length
    for _, line, _ in sample_lines(trained, prompt, options, seed, count=length):
        lines.append(joined(prompt, line[:missing]))
        missing -= len(line) + len(NEWLINE)
        if missing <= 0:
            break
    return NEWLINE.join(lines)
