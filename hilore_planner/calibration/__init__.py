"""How much an activation's error moves the gradient, measured on an update's own graph."""
