"""The TensorBoard sink, which writes and reads event files directly."""
