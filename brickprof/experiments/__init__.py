"""Questions that a second run answers: one thing is changed, and both runs are compared."""
