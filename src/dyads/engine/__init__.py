"""Where sums over dyads are computed; none of these files knows a solver."""
