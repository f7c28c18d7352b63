"""The logging API of user code, `Run` and `RunClient`, and the delivery of logged values to the hub."""
