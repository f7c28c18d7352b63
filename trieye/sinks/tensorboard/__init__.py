"""Points to TensorBoard's event files, by its own records."""
