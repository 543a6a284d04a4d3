"""Where a model lies and how large it is: GPS, known positions or a length -> metres."""
