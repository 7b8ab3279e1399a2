"""How the model that ships is made: WordNet, what it trains on, and how good the result is."""
