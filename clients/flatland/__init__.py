"""FlatLand: personalised graph federations in tailored Lorentz space."""
