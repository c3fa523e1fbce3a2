"""Average and max pooling."""
