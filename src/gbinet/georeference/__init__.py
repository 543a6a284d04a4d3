"""Georeferencing: a model's place on the map and its scale. GPS, known positions or a length -> metres."""
