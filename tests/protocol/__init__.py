"""A model of how tokens are issued (design §4.1, I1), small enough to visit every state of it."""
