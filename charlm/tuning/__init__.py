"""`charlm tune`: a search for better settings around a config. Each trial is an ordinary run."""
