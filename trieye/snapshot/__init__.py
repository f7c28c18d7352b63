"""Objects to an encoded state, and back."""
