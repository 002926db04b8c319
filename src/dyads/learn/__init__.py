"""Learning: an objective, dyads and an engine -> parameters, or draws from a posterior."""
