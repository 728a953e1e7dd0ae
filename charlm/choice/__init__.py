"""Settings that choose themselves: the text, the machine's speed, and a rule that says what a model will score."""
