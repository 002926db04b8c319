"""Learning: objective, dyads and engine -> parameters or posterior draws."""
