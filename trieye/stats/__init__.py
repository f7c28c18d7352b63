"""Events to windows to points: plain objects that know no clock, thread, file or sink."""
