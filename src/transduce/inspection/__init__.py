"""What a model does and what its parts are worth: measured, drawn, explained."""
