"""Systems that translate with one and the same trained model."""
